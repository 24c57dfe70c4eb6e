#!lua flags=no-writes
-- buffers/totals      retry: safe
-- KEYS  1 stat        hash
--       2 due         zset
--       3 idle        zset
--       4 dead        zset
-- returns found
-- found: server ms, counters, users, users due now, idle workers, dead letters

-- include time
local users = call('ZCARD', KEYS[2])
if call('ZSCORE', KEYS[2], '!') then users = users - 1 end
return {'found', now, call('HGETALL', KEYS[1]), users, call('ZCOUNT', KEYS[2], '-inf', now),
  call('ZCARD', KEYS[3]), call('ZCARD', KEYS[4])}
