#!lua flags=no-writes
-- buffers/users       retry: safe
-- KEYS  1 index       zset
-- ARGV  1 from        high: the highest first | low: the lowest | past: the lowest, up to now
--       2 count
-- returns found
-- found: server ms, users as they stand in keys and their places in the index

-- include time
if ARGV[1] == 'high' then
  return {'found', now, call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])}
end
return {'found', now, call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1] == 'past' and now or '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])}
