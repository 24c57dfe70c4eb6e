#!lua flags=no-writes
-- runs/totals         retry: safe
-- KEYS  1.. indexes   zset
-- ARGV  1 retention   ms: what ended longer ago is gone
--       2.. ended     for each index: 1 if it has runs that have ended, by the time of their end
-- returns found
-- found: how many are in each index

-- include time
local answer = {'found'}
for i, index in ipairs(KEYS) do
  if ARGV[i + 1] == '1' then
    answer[i + 1] = call('ZCOUNT', index, now - tonumber(ARGV[1]), '+inf')
  else
    answer[i + 1] = call('ZCARD', index)
  end
end
return answer
