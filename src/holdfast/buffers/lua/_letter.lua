-- include drop
local DEAD_LIFE, DEAD_MOST = 2592000000, 1000

-- Writes messages down as a dead letter, with their pairs and attachments.
local function letter(name, entries, talk, why)
  local parts, ids, files = {}, {}, 0
  for _, entry in ipairs(entries) do
    parts[#parts + 1] = entry
    if string.byte(entry, 17) == 1 then ids[string.sub(entry, 1, 10)] = true end
  end
  for _, pair in ipairs(talk) do parts[#parts + 1] = pair end
  if next(ids) then
    local held = call('HGETALL', base .. 'a:' .. member)
    for i = 1, #held, 2 do
      if ids[string.sub(held[i], 1, 10)] then
        parts[#parts + 1], parts[#parts + 2], files = held[i], held[i + 1], files + 1
      end
    end
    detach(ids)
  end
  local place, head = base .. 'x:' .. name, pack_('>I1I6I3I3I3I2', 1, now, #entries, #talk, files, attempt)
  call('RPUSH', place, head, member, why)
  for at = 1, #parts, 1000 do call('RPUSH', place, unpack(parts, at, math.min(at + 999, #parts))) end
  call('PEXPIRE', place, DEAD_LIFE)
  call('ZREMRANGEBYSCORE', base .. 'dead', '-inf', now - DEAD_LIFE)
  call('ZADD', base .. 'dead', now, name)
  call('PEXPIRE', base .. 'dead', DEAD_LIFE)
  count('dead', #entries)
  remember(entries, 0)
  for _, old in ipairs(call('ZRANGE', base .. 'dead', 0, -DEAD_MOST - 1)) do
    local lost = call('LINDEX', base .. 'x:' .. old, 0)
    if lost then count('dropped.dead', unpack_('>I3', lost, 8)) end
    call('DEL', base .. 'x:' .. old)
    call('ZREM', base .. 'dead', old)
  end
end

-- What `bury` buried, for whoever has to say so: user, batch, attempt, why.
local buried = {}

-- Moves the batch in flight to the dead letters: it was tried often enough.
local function bury(why)
  for _, part in ipairs({member, batch, attempt, why}) do buried[#buried + 1] = part end
  local away = call('LPOP', key, (popped and 0 or 1) + b)
  if not popped then table.remove(away, 1) end
  popped = true
  local talk = bc > 0 and call('LPOP', base .. 'c:' .. member, bc) or {}
  letter(string.format('%d', batch), away, talk, why)
  b, bc, attempt, batch, fence, deadline, nf, span, token = 0, 0, 0, 0, 0, 0, 0, 0, ''
end

-- Counter and clock in one, for the whole shard: it rises over a failover that forgot the last ones too. Who asks for
-- one writes it down, in `due`.
local function next_fence()
  local index = base .. 'due'
  local before = tonumber(call('ZSCORE', index, '!') or 0)
  local number = math.max(before + 1, now_us)
  if before > 0 and before - before % 3600000000 ~= number - number % 3600000000 then
    prolong(math.max(604800000, 2 * (ttl + GRACE), call('PTTL', index)))
  end
  return number
end

-- Removes waiting pairs past their life. A pair outlives it while a message that came in that time still waits.
-- Answers how many pairs there are.
local function prune_talk()
  local list = base .. 'c:' .. member
  while bc == 0 do
    local pair = call('LINDEX', list, 0)
    if not pair then return 0 end
    local at, kept = unpack_('>I6I5', pair)
    if at + kept > now or n > 0 and oldest <= at + kept then break end
    call('LPOP', list)
    count('dropped.pair_age', 1)
  end
  return call('LLEN', list)
end
