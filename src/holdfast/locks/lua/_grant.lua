-- include lock
local GRACE = 60000
local SHARD_LIFE = 604800000
local reaped, reaped_owner = 0, ''

local function hold_text(deadline, weight, fence, granted, ttl)
  return string.format('%d %d %d %d %d', deadline, weight, fence, granted, ttl)
end

-- Writes the lock down, with more fields if given. The key outlives every hold and every place in the queue.
local function write(...)
  call('HSET', K[1], 's', string.format('%d %d %d %d %d', used, limit, soonest, longest, queue and 1 or 0), ...)
  call('PEXPIRE', K[1], longest + GRACE)
end

-- Counts a hold in. A hand-over gives less than `ttl` until the new holder shows up.
local function count_in(weight, ttl, ms)
  if used == 0 then
    soonest, longest = now + ms, ttl
  else
    soonest, longest = math.min(soonest, now + ms), math.max(longest, ttl)
  end
  used = used + weight
end

-- Counter and clock in one: a failover that forgot the last grants cannot go back below the time they were made.
-- One for the shard, not one for every name ever locked. It is kept with the index of locks in use, which therefore
-- never is empty, so that its life needs to be set only by the first grant of each hour.
local function next_fence()
  local last = tonumber(call('ZSCORE', K[3], '!') or 0)
  local fence = last < now_us and now_us or last + 1
  call('ZADD', K[3], fence, '!', now + longest, name())
  if last - last % 1000000 ~= fence - fence % 1000000 then
    call('ZREMRANGEBYSCORE', K[3], '-inf', now - GRACE)
    if last - last % 3600000000 ~= fence - fence % 3600000000 then call('PEXPIRE', K[3], SHARD_LIFE) end
  end
  return fence
end
