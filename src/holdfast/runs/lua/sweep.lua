#!lua flags=allow-oom
-- runs/sweep          retry: safe
-- KEYS  1 held        zset
--       2 held        zset
--       3 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 stuck       ms without progress after which a run is listed as stuck
-- returns swept
-- swept: ms until the next lease is over (-1: nothing is owned)

-- include stuck
base = ARGV[1]
sweep()
report(tonumber(ARGV[2]))
return {'swept', ms_to_end()}
