-- include grant
local DEAF_LIMIT = 128
local granted = false

local function drop_hold(token, weight)
  used = math.max(0, used - weight)
  call('HDEL', K[1], 'h:' .. token, 'o:' .. token)
end

local function drop_ticket(token)
  call('ZREM', K[2], token)
  call('HDEL', K[1], 'w:' .. token, 'o:' .. token)
end

-- Ends every hold whose time has passed. `soonest` makes this a comparison in nearly every call: a holder that
-- renews keeps its deadline most of a ttl away. A deadline further away than the longest ttl means that the clock
-- was set back: such a hold is cut to one ttl from now, or a dead holder would keep the lock for the whole jump.
local function reap()
  if used == 0 or (now < soonest and soonest - now <= longest) then return end
  local fields = call('HGETALL', K[1])
  local next_end = nil
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'h:' then
      local token = string.sub(fields[i], 3)
      local deadline, weight, fence, granted, ttl = parse_hold(fields[i + 1])
      if deadline <= now then
        reaped, reaped_owner = reaped + 1, call('HGET', K[1], 'o:' .. token) or ''
        drop_hold(token, weight)
      else
        if deadline - now > ttl then
          deadline = now + ttl
          call('HSET', K[1], fields[i], hold_text(deadline, weight, fence, granted, ttl))
        end
        next_end = math.min(next_end or deadline, deadline)
      end
    end
  end
  soonest = next_end or 0
  write()
end

local function parse_ticket(text)
  local deadline, weight, ttl, lease, style = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%a)$')
  return tonumber(deadline), tonumber(weight), tonumber(ttl), tonumber(lease), style
end

-- Where a token's process listens: the token starts with the client's id.
local function tell(channels, token, message)
  return call('SPUBLISH', channels .. string.match(token, '^[^.]+'), message)
end

-- Hands free permits to the waiters at the head of the queue, first come first served, and tells each of them alone.
-- A waiter whose lease ran out is removed. One that nobody listens for is passed over and keeps its place: its
-- process is dead, or is about to subscribe and will then ask. `me` is the caller and gets its answer as a reply.
-- `offer` only wakes a barging waiter instead of granting to it. `gone` is a hold that ended in this call: its fields
-- are deleted along with the first ticket. Answers true if nobody who listens is left waiting.
local function pump(channels, me, offer, gone)
  local deaf = 0
  while used < limit and deaf < DEAF_LIMIT do
    local head = call('ZRANGE', K[2], deaf, deaf)[1]
    if not head then
      queue = deaf > 0
      return true
    end
    local ticket = call('HGET', K[1], 'w:' .. head)
    local deadline, weight, ttl, lease, style = parse_ticket(ticket or '0 0 0 0 f')
    if deadline <= now or deadline - now > lease then
      drop_ticket(head)
    elseif used + weight > limit then
      return false
    elseif offer and style == 'b' then
      if tell(channels, head, 'try ' .. head) > 0 then return false end
      deaf = deaf + 1
    else
      local ms = math.min(ttl, lease)
      longest = math.max(longest, ttl)
      local fence = next_fence()
      if head == me then
        ms = ttl
      elseif tell(channels, head, string.format('grant %s %d %d', head, fence, ms)) == 0 then
        ms = nil
        deaf = deaf + 1
      end
      if ms then
        call('ZREM', K[2], head)
        if gone then
          call('HDEL', K[1], 'w:' .. head, 'h:' .. gone, 'o:' .. gone)
          gone = nil
        else
          call('HDEL', K[1], 'w:' .. head)
        end
        granted = true
        count_in(weight, ttl, ms)
        write('h:' .. head, hold_text(now + ms, weight, fence, now, ttl))
      end
    end
  end
  return false
end

-- After permits were given back: hand them on, and if nobody is left the lock's keys go. `gone` as for pump.
local function settle(channels, gone)
  if queue and used < limit then pump(channels, nil, true, gone) end
  if granted then return end
  if used > 0 or queue then
    if gone then call('HDEL', K[1], 'h:' .. gone, 'o:' .. gone) end
    write()
  else
    call('DEL', K[1])
    call('ZREM', K[3], name())
  end
end
