#!lua flags=allow-oom
-- runs/look           retry: safe
-- KEYS  1 run         hash
--       2 held        zset
--       3 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 run         as it stands in keys
-- returns found | missing
-- found: server ms, run, record

-- include move
base = ARGV[1]
if not find(ARGV[2]) then return {'missing'} end
judge()
return {'found', now, ARGV[2], describe(ARGV[2])}
