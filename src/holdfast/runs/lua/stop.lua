#!lua flags=allow-oom
-- runs/stop           retry: safe
-- KEYS  1 run         hash
-- ARGV  1 base        what the collection's keys start with
--       2 run         as it stands in keys
--       3 reason
-- returns found | missing
-- found: server ms, run, record; queued ones have ended with it, running ones are told to

-- include halt
base = ARGV[1]
if not read(ARGV[2]) then return {'missing'} end
halt(ARGV[3])
return {'found', now, ARGV[2], describe(ARGV[2])}
