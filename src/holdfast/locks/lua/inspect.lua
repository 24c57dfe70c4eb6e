#!lua flags=no-writes
-- locks/inspect       retry: safe
-- KEYS  1 lock        hash
--       2 queue       zset
-- ARGV  1 waiters     how many waiters to list at the most
-- returns found
-- found: server ms, fields of the lock, first waiting tokens, number of waiters

-- include time
return {'found', now, redis.call('HGETALL', KEYS[1]),
  redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1), redis.call('ZCARD', KEYS[2])}
