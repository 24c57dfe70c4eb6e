#!lua
-- once/mark           retry: safe
-- KEYS  1.. ids       string
-- ARGV  1 mark        what is written: who repeats it finds its own
--       2 within      ms
--       3.. undone    marks that are being taken back: an id with one of these is new
-- returns found
-- found: for each id the letter 1: new, or 0: known

local answer, undone = {}, {}
for i = 3, #ARGV do undone[ARGV[i]] = true end
for i = 1, #KEYS do
  local there = redis.call('SET', KEYS[i], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
  if there and undone[there] then
    redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2])
    there = nil
  end
  answer[i] = (not there or there == ARGV[1]) and '1' or '0'
end
return {'found', table.concat(answer)}
