#!lua flags=allow-oom
-- runs/renew          retry: safe
-- KEYS  1 held        zset
--       2.. runs      hash
-- ARGV  1.. pairs     token and ttl in ms, one pair for each run
-- returns renewed
-- renewed: server ms, then for each run 1, 2: kept and it should stop, or 0: it is not this owner's any more

-- include record
local answer = {'renewed', now}
base = string.sub(KEYS[1], 1, #KEYS[1] - 4)
for i = 2, #KEYS do
  if read(string.sub(KEYS[i], #base + 3)) and mine(ARGV[2 * i - 3]) then
    span = tonumber(ARGV[2 * i - 2])
    deadline = now + span
    write()
    touch()
    index('held', deadline, id)
    answer[#answer + 1] = stop_at > 0 and 2 or 1
  else
    answer[#answer + 1] = 0
  end
end
return answer
