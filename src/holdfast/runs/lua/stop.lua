#!lua flags=allow-oom
-- runs/stop           retry: safe
-- KEYS  1 run         hash
--       2 held        zset
--       3 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 run         as it stands in keys
--       3 reason
-- returns found | missing
-- found: server ms, run, record; queued ones have ended with it, running ones are told to
-- missing: a run of this id that is started within a minute ends at once

-- include halt
local EARLY = 60000
base = ARGV[1]
if not find(ARGV[2]) then
  -- The stop may have been faster than the start: it is kept for a while.
  call('HSET', KEYS[1], 'p', ARGV[3])
  call('PEXPIRE', KEYS[1], EARLY)
  return {'missing'}
end
halt(ARGV[3])
return {'found', now, ARGV[2], describe(ARGV[2])}
