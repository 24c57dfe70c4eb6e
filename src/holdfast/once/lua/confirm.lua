#!lua flags=allow-oom
-- once/confirm        retry: safe
-- KEYS  1 id          string
-- ARGV  1 token
--       2 result      what others are answered
--       3 within      ms for which it stays done
--       4 channel     on which others wait for it
-- returns settled | not_held

-- include claim
local call = redis.call
local there = call('GET', KEYS[1])
if not there then return {'not_held'} end
local kind, token, digest = parse_claim(there)
if token ~= ARGV[1] or kind == 'm' then return {'not_held'} end
if kind == 'p' then
  call('SET', KEYS[1], 'd' .. token .. digest .. ARGV[2], 'PX', ARGV[3])
  call('SPUBLISH', ARGV[4], '1')
end
return {'settled'}
