#!lua flags=no-writes
-- buffers/dead        retry: safe
-- KEYS  1 dead        zset
-- ARGV  1 base        what the shard's keys start with
--       2 offset
--       3 count
--       4 batch       only this one; 0: any
--       5 whole       1: with all that is in it
-- returns found
-- found: server ms, then for each letter: batch and its parts

local call = redis.call
local time = call('TIME')
local answer = {'found', time[1] * 1000}
local names = call('ZREVRANGE', KEYS[1], ARGV[2], ARGV[2] + ARGV[3] - 1)
if ARGV[4] ~= '0' then names = {ARGV[4]} end
for _, name in ipairs(names) do
  local parts = call('LRANGE', ARGV[1] .. 'x:' .. name, 0, ARGV[5] == '1' and -1 or 2)
  if #parts > 0 then
    answer[#answer + 1] = name
    answer[#answer + 1] = parts
  end
end
return answer
