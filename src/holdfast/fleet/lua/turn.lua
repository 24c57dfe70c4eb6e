#!lua
-- fleet/turn          retry: safe
-- KEYS  1 turn        string
-- ARGV  1 token       of this request: repeated, it answers the same
--       2 ms          for which it is nobody else's turn
-- returns taken | busy

local taken = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if taken or redis.call('GET', KEYS[1]) == ARGV[1] then return {'taken'} end
return {'busy'}
