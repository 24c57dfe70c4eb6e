#!lua flags=allow-oom
-- monitor/take        retry: safe
-- KEYS  1 none        string never there: a slot that is moving is not used
--       2 slow        zset of subscribers that failed last
--       3.. lists     zset
-- ARGV  1 base        what the monitor's keys start with
--       2 slow        subscribers at most of those that failed last
--       3 lease       ms after which another process tells it, where the subscriber says nothing else
--       4.. tokens    one for each subscriber that may be taken
-- returns taken
-- taken: server time in microseconds, ms until the next is due (-1: none), version of the subscribers, then for each its
-- name, token, first change, number of changes, attempt, failures, how many changes are gone, the changes, 1 if it failed
-- last, and ms for which it is this process's

-- include time
-- include log
local answer = {'taken', now_us, -1, call('GET', base_key('subs')) or '0'}
local free, slow, soonest = 4, tonumber(ARGV[2]), -1

local BYTES = 1048576

local function give(list, who)
  local state, queue = base_key('d:' .. who), base_key('q:' .. who)
  local count, attempt, most, failed, lease =
    unpack(call('HMGET', state, 'count', 'attempt', 'most', 'failed', 'lease'))
  lease = known(lease) > 0 and known(lease) or tonumber(ARGV[3])
  local fresh = false
  count, attempt = known(count), known(attempt)
  if count == 0 then
    count, attempt = math.min(call('LLEN', queue), math.max(1, known(most))), 0
    fresh = true
  end
  if count == 0 then return call('ZREM', list, who) end
  local items, gone, changes, bytes = call('LRANGE', queue, 0, count - 1), 0, {}, 0
  for number, item in ipairs(items) do
    local one = change_of(item)
    if one then
      bytes = bytes + #one[2][4] + #one[2][6] + #one[2][8]
      if fresh and bytes > BYTES and number > 1 then
        count = number - 1  -- the rest comes in the next message
        break
      end
      changes[#changes + 1] = one
    else
      gone = gone + 1
    end
  end
  local token, first = ARGV[free], items[1]
  if string.sub(first, 1, 1) == '!' then first = change_of(first)[1] end
  call('HSET', state, 'token', token, 'count', count, 'attempt', attempt + 1)
  call('PEXPIRE', state, KEEP)
  call('ZADD', list, now + lease, who)
  free = free + 1
  answer[#answer + 1] = {
    who, token, first, count, attempt + 1, known(failed), gone, changes, list == KEYS[2] and 1 or 0,
    lease,
  }
end

for i = 2, #KEYS do
  local most = #ARGV - free + 1
  if i == 2 then most = math.min(most, slow) end
  if most > 0 then
    for _, who in ipairs(call('ZRANGEBYSCORE', KEYS[i], '-inf', now, 'LIMIT', 0, most)) do give(KEYS[i], who) end
  end
  local first = (i > 2 or slow > 0) and call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')[2]
  if first then
    local wait = math.max(0, tonumber(first) - now)
    if soonest < 0 or wait < soonest then soonest = wait end
  end
end
answer[3] = soonest
return answer
