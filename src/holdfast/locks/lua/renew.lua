#!lua flags=allow-oom
-- locks/renew         retry: safe
-- KEYS  1 shard       zset
--       2.. locks     hash
-- ARGV  1.. pairs     token and ttl in ms, one pair for each lock
-- returns renewed
-- renewed: server ms, then 1 or 0 for each lock; 0: that hold is gone and is not made again

-- include grant
local answer = {'renewed', now}
for i = 2, #KEYS do
  K = {KEYS[i], nil, KEYS[1]}
  local token, ttl = ARGV[2 * i - 3], tonumber(ARGV[2 * i - 2])
  local hold = read(token)
  local deadline, weight, fence, granted = parse_hold(hold or '0 0 0 0 0')
  if deadline > now then
    -- With one holder the earliest end is known; with several an old one is still a safe lower bound.
    soonest = used == weight and now + ttl or math.min(soonest, now + ttl)
    longest = math.max(longest, ttl)
    write('h:' .. token, hold_text(now + ttl, weight, fence, granted, ttl))
    call('ZADD', K[3], now + longest, name())
    answer[#answer + 1] = 1
  else
    answer[#answer + 1] = 0
  end
end
call('PEXPIRE', KEYS[1], SHARD_LIFE)
return answer
