-- include user
-- The leading messages that are ready to be taken, and when the next one will be at the latest (nil: all are).
local function ready(most)
  if np == 0 then return math.min(n, most), nil end
  local first = b + (popped and 0 or 1)
  local entries = call('LRANGE', key, first, first + math.min(n, most) - 1)
  for i, entry in ipairs(entries) do
    if string.byte(entry, 17) == 1 then
      local state = call('HGET', base .. 'a:' .. member, string.sub(entry, 1, 10)) or '0 0'
      local open, latest = string.match(state, '^(%d+) (%d+)$')
      if tonumber(open) > 0 and tonumber(latest) > now then return i - 1, tonumber(latest) end
    end
  end
  return #entries, nil
end

-- When must somebody look at this user next? 0: never.
local function next_look()
  -- Further away than it was given for: the server's clock was set back, and a dead holder must not gain by it.
  if b > 0 then return deadline - now > span and now or deadline end
  if n == 0 then return 0 end
  if force == 1 and np == 0 then return due > 0 and math.min(due, now) or now end
  local count, blocked = ready(100000)
  if count == 0 then return math.min(blocked, oldest + ttl) end
  if force == 1 then return due > 0 and math.min(due, now) or now end
  local at = oldest + ttl - math.min(3600000, (ttl - ttl % 2) / 2)
  if age > 0 then at = math.min(at, oldest + age) end
  if quiet > 0 then at = math.min(at, last + quiet) end
  -- Due since it became due: whoever waits longest is first.
  if thr > 0 and count >= thr then at = math.min(at, due > 0 and due <= now and due or now) end
  return blocked and math.min(at, blocked) or at
end

-- Tells one idle worker to look at this shard in so many ms. A dead one does not listen and is forgotten.
local function wake(ms)
  for _ = 1, 16 do
    local worker = call('ZREVRANGE', base .. 'idle', 0, 0)[1]
    if not worker then return end
    if call('SPUBLISH', base .. 'sig:' .. string.sub(worker, 1, 16),
        string.format('work %s %s %d', worker, string.match(base, '%.(%d+)}'), ms)) > 0 then
      return
    end
    call('ZREM', base .. 'idle', worker)
  end
end

local SOON = 10000

-- Puts the user where it belongs in the index; wakes a worker if it became due, or will soon and nobody knows yet.
-- `number`: a new fence, which is kept there too.
local function schedule(quietly, number)
  local before, at = due, next_look()
  due = at
  if at == 0 then
    call('ZREM', base .. 'due', member)
    return
  end
  local added
  if number then
    added = call('ZADD', base .. 'due', at, member, number, '!')
  else
    added = call('ZADD', base .. 'due', at, member)
  end
  if added > 0 and size_class(n) > 0 then rank('big', n) end
  if added > 0 or ttl > 259200000 then
    local kept, wanted = call('PTTL', base .. 'due'), math.max(604800000, 2 * (ttl + GRACE))
    if kept < wanted / 2 then prolong(wanted) end
  end
  if quietly or b > 0 and token ~= '' then return end
  if at <= now then
    if before == 0 or before > now then wake(0) end
  elseif at < now + SOON and (before == 0 or before > at) then
    wake(at - now)
  end
end
