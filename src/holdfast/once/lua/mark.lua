#!lua
-- once/mark           retry: safe
-- KEYS  1.. ids       string
-- ARGV  1 mark        what is written: who repeats it finds its own
--       2 within      ms
-- returns found
-- found: for each id the letter 1: new, or 0: known

local answer = {}
for i = 1, #KEYS do
  local there = redis.call('SET', KEYS[i], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
  answer[i] = (not there or there == ARGV[1]) and '1' or '0'
end
return {'found', table.concat(answer)}
