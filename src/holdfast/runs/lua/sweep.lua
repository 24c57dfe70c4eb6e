#!lua flags=allow-oom
-- runs/sweep          retry: safe
-- KEYS  1 held        zset
-- ARGV  1 base        what the collection's keys start with
-- returns swept
-- swept: ms until the next lease is over (-1: nothing is owned)

-- include move
base = ARGV[1]
sweep()
return {'swept', ms_to_end()}
