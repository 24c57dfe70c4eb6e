#!lua flags=allow-oom
-- once/drop           retry: safe
-- KEYS  1 id          string
-- ARGV  1 token
--       2 channel     on which others wait for it
-- returns released | not_held

-- include claim
local call = redis.call
if not claimed_by(call('GET', KEYS[1]), ARGV[1]) then return {'not_held'} end
call('DEL', KEYS[1])
call('SPUBLISH', ARGV[2], '1')
return {'released'}
