#!lua flags=allow-oom
-- buffers/leave       retry: safe
-- KEYS  1 idle        zset
--       2 due         zset
-- ARGV  1 base        what the shard's keys start with
--       2 worker      is busy or ends: it is not woken until it looks here again
-- returns left
-- left: if somebody is due within a second, the next idle worker was told instead

-- include schedule
base = ARGV[1]
call('ZREM', KEYS[1], ARGV[2])
local head = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
-- Not due yet by this clock, but by that of the worker: the next one is told when.
if head[1] and tonumber(head[2]) < now + 1000 then wake(math.max(0, head[2] - now)) end
return {'left'}
