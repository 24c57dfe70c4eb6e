#!lua flags=no-writes
-- locks/list          retry: safe
-- KEYS  1 shard       zset
-- ARGV  1 offset
--       2 count
-- returns found
-- found: server ms, kind and id of the locks in use, those that end first leading

-- include time
return {'found', now,
  redis.call('ZRANGEBYSCORE', KEYS[1], now, '1e14', 'LIMIT', ARGV[1], ARGV[2])}
