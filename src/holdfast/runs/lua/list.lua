#!lua flags=allow-oom
-- runs/list           retry: safe
-- KEYS  1.. indexes   zset
-- ARGV  1 base        what the collection's keys start with
--       2 count       runs at most, the latest first in each index
--       3.. states    for each index: the state that its runs are in, 7: one that is final, 0: any
-- returns found
-- found: server ms, then for each run: id, record without input and result

-- include record
base = ARGV[1]
local answer, left = {'found', now}, tonumber(ARGV[2])
for i, name in ipairs(KEYS) do
  local wanted = tonumber(ARGV[i + 2])
  for _, run in ipairs(left > 0 and call('ZREVRANGE', name, 0, left - 1) or {}) do
    local f = call('HMGET', base .. 'r:' .. run, 'm', 'k', 'y', 'o', 'w', 'p')
    local found = f[1] and string.byte(f[1], 2)
    if found and (wanted == 0 or wanted == found or (wanted == 7 and found > STOPPING)) then
      answer[#answer + 1] = run
      answer[#answer + 1] = f
      left = left - 1
    else
      -- Gone, or started again under the same id since it ended.
      call('ZREM', name, run)
    end
  end
end
return answer
