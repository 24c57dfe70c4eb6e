#!lua flags=no-writes
-- runs/flags          retry: safe
-- KEYS  1.. runs      hash
-- ARGV  1 base        what the collection's keys start with
--       2.. tokens    one for each run
-- returns found
-- found: for each run 1: it is this owner's, 2: and should stop, or 0: it is not this owner's any more

-- include record
base = ARGV[1]
local answer = {'found'}
for i = 1, #KEYS do
  local known = read(string.sub(KEYS[i], #base + 3)) and mine(ARGV[i + 1])
  answer[i + 1] = known and (stop_at > 0 and 2 or 1) or 0
end
return answer
