#!lua flags=no-writes
-- runs/find           retry: safe
-- KEYS  1 owned       zset
-- ARGV  1 base        what the collection's keys start with
--       2.. tokens    of a take whose reply was lost
-- returns taken
-- taken: 0, 0, nothing, then each run that was given to one of them: id, fence, attempt, ms, key, kind, input, checkpoint,
--        steps, 1 if it should stop

-- include give
base = ARGV[1]
local wanted, answer = {}, {'taken', 0, 0, {}}
for i = 2, #ARGV do wanted[ARGV[i]] = true end
for _, run in ipairs(call('ZREVRANGE', KEYS[1], 0, -1)) do
  if read(run) and wanted[token] and owned() then
    local one = handed()
    one[#one + 1] = token
    answer[#answer + 1] = one
  end
end
return answer
