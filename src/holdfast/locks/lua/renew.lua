#!lua flags=allow-oom
-- locks/renew         retry: safe
-- KEYS  1 index       zset
--       2.. locks     hash
-- ARGV  1.. pairs     token and ttl in ms, one pair for each lock
-- returns renewed
-- renewed: server ms, then 1 or 0 for each lock; 0: that hold is gone and is not made again

-- include time
local GRACE = 60000
local answer = {'renewed', now}
for i = 2, #KEYS do
  local key, token, ttl = KEYS[i], ARGV[2 * i - 3], tonumber(ARGV[2 * i - 2])
  local f = redis.call('HMGET', key, 'h:' .. token, 'u', 'm', 't')
  local ok = 0
  if f[1] then
    local deadline, weight, fence, granted = string.match(f[1], '^(%d+) (%d+) (%d+) (%d+)')
    if tonumber(deadline) > now then
      ok = 1
      local ends = now + ttl
      -- With one holder the earliest end is known; with several an old one is still a safe lower bound.
      local soonest = f[2] == weight and ends or math.min(tonumber(f[3]), ends)
      local longest = math.max(tonumber(f[4]) or 0, ttl)
      redis.call('HSET', key, 'm', int(soonest), 't', longest,
        'h:' .. token, table.concat({int(ends), weight, fence, granted, ttl}, ' '))
      redis.call('PEXPIRE', key, longest + GRACE)
      redis.call('ZADD', KEYS[1], now + longest, string.match(key, '^[^}]*}:(.*)$'))
      redis.call('PEXPIRE', KEYS[1], longest + GRACE, 'GT')
    end
  end
  answer[#answer + 1] = ok
end
return answer
