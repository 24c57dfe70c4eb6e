#!lua flags=allow-oom
-- runs/list           retry: safe
-- KEYS  1.. indexes   zset
-- ARGV  1 base        what the collection's keys start with
--       2 count       runs at most, the latest first in each index
-- returns found
-- found: server ms, then for each run: id, record without input and result

-- include record
base = ARGV[1]
local answer, left = {'found', now}, tonumber(ARGV[2])
for _, index in ipairs(KEYS) do
  if left > 0 then
    for _, run in ipairs(call('ZREVRANGE', index, 0, left - 1)) do
      local f = run ~= '!' and call('HMGET', base .. 'r:' .. run, 'm', 'k', 'y', 'o', 'w', 'p')
      if f and f[1] then
        answer[#answer + 1] = run
        answer[#answer + 1] = f
        left = left - 1
      elseif run ~= '!' then
        call('ZREM', index, run)
      end
    end
  end
end
return answer
