#!lua flags=allow-oom
-- buffers/renew       retry: safe
-- KEYS  1 due         zset
--       2.. users     list
-- ARGV  1.. pairs     token and ttl in ms, one pair for each user
-- returns renewed
-- renewed: server ms, then 1 or 0 for each user; 0: that batch is gone and is not made again

-- include drop
local answer = {'renewed', now}
base = string.sub(KEYS[1], 1, #KEYS[1] - 3)
for i = 2, #KEYS do
  key = KEYS[i]
  member = string.sub(key, #base + 3)
  if read(call('LINDEX', key, 0)) and b > 0 and token == ARGV[2 * i - 3] and deadline > now then
    span = tonumber(ARGV[2 * i - 2])
    deadline = now + span
    finish(true)
    answer[#answer + 1] = 1
  else
    answer[#answer + 1] = 0
  end
end
return answer
