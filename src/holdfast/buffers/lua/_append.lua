-- include user
key, member = KEYS[1], ARGV[2]
local op, capacity, most, kept, count_in = ARGV[1], unpack_('>I4I4I5I2', ARGV[3])
local known = read(call('LINDEX', key, 0))

-- The whole of most calls: one more message, within the bounds, that changes nothing about when to look.
if known and count_in == 1 and not repeated and #ARGV == 4 then
  local size = #ARGV[3 + count_in] + 16
  if n > 0 and n < capacity and bytes + size <= most and oldest + kept > now and again <= now and quiet == 0
      and np == 0 and kept == ttl and (thr == 0 or n + 1 < thr) then
    n, bytes, last = n + 1, bytes + size, math.max(now, last)
    call('RPUSH', key, op .. pack_('>I2I6', 0, last) .. ARGV[3 + count_in])
    write()
    call('PEXPIRE', key, life())
    if n % 16 == 0 and size_class(n) > size_class(n - 1) then
      base = string.sub(key, 1, #key - #member - 2)
      rank('big', n)
    end
    return {'stored', n, now - oldest}
  end
end

-- include drop
base = string.sub(key, 1, #key - #member - 2)
if not known then
  local conf = call('HGET', base .. 'stat', 'conf')
  if conf then
    local t, a, q = string.match(conf, '^(%d+) (%d+) (%d+)$')
    thr, age, quiet = tonumber(t), tonumber(a), tonumber(q)
  end
  -- Somebody's buffer may have ended with nobody there to count it: two looks for each new one keep the index clean.
  for _, user in ipairs(call('ZRANGEBYSCORE', base .. 'due', '-inf', now, 'LIMIT', 0, 2)) do
    if call('EXISTS', base .. 'u:' .. user) == 0 then
      for _, index in ipairs({'due', 'old', 'big'}) do call('ZREM', base .. index, user) end
      count('vanished', 1)
    end
  end
end
-- Stored already? The first request may also come last: so a repeated one leaves marks that make plain ones look.
if repeated then
  again = now + REMEMBER
  call('SET', base .. 'r:' .. member, '', 'PX', REMEMBER)
elseif not known then
  again = math.max(0, now + call('PTTL', base .. 'r:' .. member))
  if again < now then again = 0 end
end
if again > now then
  local found = was_op(op)
  if not found and known then
    for _, entry in ipairs(call('LRANGE', key, 1, -1)) do
      if string.sub(entry, 1, 8) == op then found = true end
    end
  end
  if found then
    if known then write() end
    return {'replayed', n, n > 0 and now - oldest or 0}
  end
end

ttl = kept
if known then expire() end
last = math.max(now, last)
local entries = {}
for i = 1, count_in do
  local entry = op .. pack_('>I2I6', i - 1, last) .. ARGV[3 + i]
  entries[i] = entry
  bytes = bytes + #entry
  if string.byte(entry, 17) == 1 then np = np + 1 end
end
if n == 0 then oldest = last end
n = n + count_in
call('RPUSH', key, unpack(entries))
if not known then popped = true end
local held = {}
for i = 4 + count_in, #ARGV, 3 do
  local id, at = op .. pack_('>I2', tonumber(ARGV[i])), now + tonumber(ARGV[i + 2])
  local open, latest = unpack(held[id] or {0, 0})
  held[id] = {open + 1, math.max(latest, at)}
  call('HSET', base .. 'a:' .. member, id .. ARGV[i + 1], 'p' .. pack_('>I6', at))
end
for id, state in pairs(held) do
  call('HSET', base .. 'a:' .. member, id, string.format('%d %d', state[1], state[2]))
end

local over, heavy = 0, 0
if n > capacity then
  local out = cut(n - capacity)
  over = #out
  remember(out, 0)
end
if bytes > most then
  local left = bytes
  heavy = cut_while(function(entry, k)
    if left <= most or k + 1 >= n then return false end
    left = left - #entry
    return true
  end)
end
if over > 0 then count('dropped.capacity', over) end
if heavy > 0 then count('dropped.bytes', heavy) end
finish(false)
return {'stored', n, now - oldest, aged, over, heavy}
