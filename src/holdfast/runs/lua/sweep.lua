#!lua flags=allow-oom
-- runs/sweep          retry: safe
-- KEYS  1 held        zset
-- ARGV  1 base        what the collection's keys start with
-- returns swept
-- swept: ms until somebody must look again (-1: nothing is queued or running)

-- include move
base = ARGV[1]
sweep()
return {'swept', ms_to_next()}
