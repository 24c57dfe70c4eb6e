#!lua flags=no-writes
-- locks/count         retry: safe
-- KEYS  1 shard       zset
-- returns found
-- found: how many locks are in use

-- include time
return {'found', call('ZCOUNT', KEYS[1], now, '1e14')}
