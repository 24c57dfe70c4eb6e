#!lua flags=no-writes
-- fleet/actions       retry: safe
-- KEYS  1 audit       stream
--       2 outcomes    hash
-- ARGV  1 count
--       2 before      id of an entry; +: the newest
-- returns found
-- found: entries, the newest first: id, fields, outcome

local answer = {'found'}
local from = ARGV[2] == '+' and '+' or '(' .. ARGV[2]
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], from, '-', 'COUNT', ARGV[1])) do
  answer[#answer + 1] = {entry[1], entry[2], redis.call('HGET', KEYS[2], entry[1]) or ''}
end
return answer
