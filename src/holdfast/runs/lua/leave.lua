#!lua flags=allow-oom
-- runs/leave          retry: safe
-- KEYS  1 idle        zset
--       2 due         zset
--       3 held        zset
--       4 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 worker      ends: it is not woken any more
-- returns left
-- left: if a run is waiting for a worker, the next idle one was told

-- include move
base = ARGV[1]
call('ZREM', KEYS[1], ARGV[2])
if #call('ZRANGEBYSCORE', KEYS[2], '-inf', now_us, 'LIMIT', 0, 1) > 0 then wake() end
return {'left'}
