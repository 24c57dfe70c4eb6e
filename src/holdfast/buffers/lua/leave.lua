#!lua flags=allow-oom
-- buffers/leave       retry: safe
-- KEYS  1 idle        zset
--       2 due         zset
-- ARGV  1 base        what the shard's keys start with
--       2 worker      is busy or ends: it is not woken until it looks here again
-- returns left
-- left: if somebody is due now, the next idle worker was woken instead

-- include schedule
base = ARGV[1]
call('ZREM', KEYS[1], ARGV[2])
local head = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if head[1] and tonumber(head[2]) <= now then wake(0) end
return {'left'}
