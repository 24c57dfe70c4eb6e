-- include time
-- One lock is a number of permits: a mutex has 1, a semaphore n, a read/write lock a million of which a reader
-- takes 1 and a writer all. Every kind therefore has the same hash, the same queue and the same scripts.
--
-- KEYS[1] hash      u used permits · l limit · m no hold ends before this · t longest ttl of a hold
--                   h:<token> hold "deadline weight fence granted ttl"
--                   w:<token> waiter "deadline weight ttl lease style"
--                   o:<token> owner, free text
-- KEYS[2] zset      waiting tokens by arrival
-- KEYS[3] string    last fence of the shard
-- KEYS[4] zset      locks in use in the shard, by the time they end at the latest
--
-- A hold is judged by its deadline, not by the life of the key: the key stays GRACE longer, so that whoever takes
-- an expired lease over can be told whose it was.
local GRACE = 60000
local FENCE_LIFE = 604800000
local DEAF_LIMIT = 128

local used, limit, soonest, longest
local reaped, reaped_owner = 0, ''

local function read(token)
  local f = redis.call('HMGET', KEYS[1], 'u', 'l', 'm', 't', 'h:' .. token, 'w:' .. token)
  used, limit = tonumber(f[1]) or 0, tonumber(f[2]) or 1
  soonest, longest = tonumber(f[3]) or 0, tonumber(f[4]) or 0
  return f[5], f[6]
end

local function parse_hold(text)
  local deadline, weight, fence, granted, ttl = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return tonumber(deadline), tonumber(weight), fence, granted, tonumber(ttl)
end

local function parse_ticket(text)
  local deadline, weight, ttl, lease, style = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%a)$')
  return tonumber(deadline), tonumber(weight), tonumber(ttl), tonumber(lease), style
end

-- The part of the key after the hash tag: kind and id.
local function name()
  return string.match(KEYS[1], '^[^}]*}:(.*)$')
end

-- Counter and clock in one: a failover that forgot the last grants cannot go back below the time they were made.
-- One key for the shard, not one for every name ever locked.
local function next_fence()
  local fence = math.max((tonumber(redis.call('GET', KEYS[3]) or 0)) + 1, now_us)
  redis.call('SET', KEYS[3], int(fence), 'PX', FENCE_LIFE)
  return fence
end

local function keep_keys()
  redis.call('PEXPIRE', KEYS[1], longest + GRACE)
  redis.call('ZADD', KEYS[4], now + longest, name())
  if redis.call('PEXPIRE', KEYS[4], longest + GRACE, 'GT') == 0 then
    redis.call('PEXPIRE', KEYS[4], longest + GRACE, 'NX')
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now - GRACE)
end

-- Gives `weight` permits to the token for `ms`; a hand-over gives less than `ttl` until the new holder shows up.
local function grant(token, weight, ttl, ms, fence, owner)
  local deadline = now + ms
  if used == 0 then
    soonest, longest = deadline, ttl
  else
    soonest, longest = math.min(soonest, deadline), math.max(longest, ttl)
  end
  used = used + weight
  local hold = int(deadline) .. ' ' .. weight .. ' ' .. int(fence) .. ' ' .. int(now) .. ' ' .. ttl
  redis.call('HSET', KEYS[1], 'u', used, 'l', limit, 'm', int(soonest), 't', longest, 'h:' .. token, hold)
  if owner then redis.call('HSET', KEYS[1], 'o:' .. token, owner) end
  keep_keys()
end

local function drop_hold(token, weight)
  used = math.max(0, used - weight)
  redis.call('HDEL', KEYS[1], 'h:' .. token, 'o:' .. token)
end

local function drop_ticket(token)
  redis.call('ZREM', KEYS[2], token)
  redis.call('HDEL', KEYS[1], 'w:' .. token, 'o:' .. token)
end

-- Ends every hold whose time has passed. `soonest` makes this a comparison in nearly every call: a holder that
-- renews keeps its deadline most of a ttl away. A deadline further away than the longest ttl means that the clock
-- was set back: such a hold is cut to one ttl from now, or a dead holder would keep the lock for the whole jump.
local function reap()
  if used == 0 or (now < soonest and soonest - now <= longest) then return end
  local fields = redis.call('HGETALL', KEYS[1])
  local next_end = nil
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'h:' then
      local token = string.sub(fields[i], 3)
      local deadline, weight, fence, granted, ttl = parse_hold(fields[i + 1])
      if deadline <= now then
        reaped, reaped_owner = reaped + 1, redis.call('HGET', KEYS[1], 'o:' .. token) or ''
        drop_hold(token, weight)
      else
        if deadline - now > ttl then
          deadline = now + ttl
          redis.call('HSET', KEYS[1], fields[i], table.concat({int(deadline), weight, fence, granted, ttl}, ' '))
        end
        next_end = math.min(next_end or deadline, deadline)
      end
    end
  end
  soonest = next_end or 0
  redis.call('HSET', KEYS[1], 'u', used, 'm', int(soonest))
end

-- Where a token's process listens: the token starts with the client's id.
local function tell(channels, token, message)
  return redis.call('SPUBLISH', channels .. string.match(token, '^[^.]+'), message)
end

-- Hands free permits to the waiters at the head of the queue, first come first served, and tells each of them alone.
-- A waiter whose lease ran out is removed. One that nobody listens for is passed over and keeps its place: its
-- process is dead, or is about to subscribe and will then ask. `me` is the caller and gets its answer as a reply.
-- `offer` only wakes a barging waiter instead of granting to it. Answers true if nobody who listens is left waiting.
local function pump(channels, me, offer)
  local deaf = 0
  while used < limit and deaf < DEAF_LIMIT do
    local head = redis.call('ZRANGE', KEYS[2], deaf, deaf)[1]
    if not head then return true end
    local ticket = redis.call('HGET', KEYS[1], 'w:' .. head)
    local deadline, weight, ttl, lease, style = parse_ticket(ticket or '0 0 0 0 f')
    if deadline <= now then
      drop_ticket(head)
    elseif used + weight > limit then
      return false
    elseif offer and style == 'b' then
      if tell(channels, head, 'try ' .. head) > 0 then return false end
      deaf = deaf + 1
    else
      local fence, ms = next_fence(), math.min(ttl, lease)
      if head == me then
        ms = ttl
      elseif tell(channels, head, 'grant ' .. head .. ' ' .. int(fence) .. ' ' .. ms) == 0 then
        ms = nil
        deaf = deaf + 1
      end
      if ms then
        redis.call('ZREM', KEYS[2], head)
        redis.call('HDEL', KEYS[1], 'w:' .. head)
        grant(head, weight, ttl, ms, fence)
      end
    end
  end
  return false
end

-- After permits were given back: the lock's keys go when nobody is left.
local function settle(channels)
  if used < limit and redis.call('EXISTS', KEYS[2]) == 1 then pump(channels, nil, true) end
  if used > 0 or redis.call('EXISTS', KEYS[2]) == 1 then
    redis.call('HSET', KEYS[1], 'u', used)
  else
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[4], name())
  end
end
