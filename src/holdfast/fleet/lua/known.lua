#!lua flags=no-writes
-- fleet/known         retry: safe
-- KEYS  1 names       zset
--       2 totals      hash
-- returns found
-- found: server ms, names and when each was last heard of, counters and their values

-- include time
return {'found', now, call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '-inf', 'WITHSCORES'), call('HGETALL', KEYS[2])}
