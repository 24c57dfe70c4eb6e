#!lua flags=allow-oom
-- fleet/outcome       retry: safe
-- KEYS  1 outcomes    hash
-- ARGV  1 action      id of its entry
--       2 outcome     free text
-- returns recorded

redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], 7776000000)
return {'recorded'}
