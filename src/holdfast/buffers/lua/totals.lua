#!lua flags=no-writes
-- buffers/totals      retry: safe
-- KEYS  1 stat        hash
--       2 due         zset
--       3 idle        zset
--       4 dead        zset
--       5 old         zset
-- returns found
-- found: server ms, counters, users, users due now, idle workers, dead letters, ms since the oldest message that waits,
--        or since a batch that nobody has could be taken (-1: nothing waits)

-- include time
local users = call('ZCARD', KEYS[2])
if call('ZSCORE', KEYS[2], '!') then users = users - 1 end
local eldest = call('ZRANGEBYSCORE', KEYS[5], '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
-- Whoever is due has waited at least since then, also one whose batch was lost.
local overdue = call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'WITHSCORES', 'LIMIT', 0, 1)[2]
if overdue and (not eldest or tonumber(overdue) < tonumber(eldest)) then eldest = overdue end
return {'found', now, call('HGETALL', KEYS[1]), users, call('ZCOUNT', KEYS[2], '-inf', now),
  call('ZCARD', KEYS[3]), call('ZCARD', KEYS[4]), eldest and math.max(0, now - tonumber(eldest)) or -1}
