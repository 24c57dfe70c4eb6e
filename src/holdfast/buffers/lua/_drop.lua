-- include schedule
local counted = false
local function count(what, by)
  call('HINCRBY', base .. 'stat', what, by)
  if not counted then call('PEXPIRE', base .. 'stat', 2592000000) end
  counted = true
end

-- Forgets the attachments of these messages.
local function detach(ids)
  local held = base .. 'a:' .. member
  for _, field in ipairs(call('HKEYS', held)) do
    if ids[string.sub(field, 1, 10)] then call('HDEL', held, field) end
  end
end

-- Remembers what is here no more, for as long as a repeated append or acknowledgement may come.
local function remember(entries, id)
  local gone, ids = base .. 'g:' .. member, {}
  for _, entry in ipairs(entries) do
    if unpack_('>I6', entry, 11) > now - REMEMBER then ids[#ids + 1] = string.sub(entry, 1, 10) end
  end
  if #ids == 0 and id == 0 then return end
  local length = call('RPUSH', gone, pack_('>I6I8', now, id) .. table.concat(ids))
  while length > 1 and (length > 1000 or unpack_('>I6', call('LINDEX', gone, 0)) <= now - REMEMBER) do
    call('LPOP', gone)
    length = length - 1
  end
  call('PEXPIRE', gone, REMEMBER)
end

-- Takes the k oldest waiting messages out, with the record: `write` puts that back. Answers them.
local function cut(k)
  local out, away, ids, any = {}, call('LPOP', key, (popped and 0 or 1) + b + k), {}, false
  local skip = popped and 0 or 1
  popped = true
  for i = skip + b + 1, #away do
    local entry = away[i]
    out[#out + 1] = entry
    bytes = bytes - #entry
    if string.byte(entry, 17) == 1 then
      np, any = np - 1, true
      ids[string.sub(entry, 1, 10)] = true
    end
  end
  n = n - #out
  if any then detach(ids) end
  local back = {}
  for i = skip + b, skip + 1, -1 do back[#back + 1] = away[i] end
  if b > 0 then call('LPUSH', key, unpack(back)) end
  local head = n > 0 and call('LINDEX', key, b)
  oldest = head and unpack_('>I6', head, 11) or 0
  return out
end

-- The oldest waiting messages for which `goes` holds, cut at once: one by one would move a batch in flight each time.
local function cut_while(goes)
  local k, first = 0, b + (popped and 0 or 1)
  while k < n do
    local slice = call('LRANGE', key, first + k, first + k + 499)
    local from = k
    for _, entry in ipairs(slice) do
      if not goes(entry, k) then break end
      k = k + 1
    end
    if k - from < 500 then break end
  end
  if k > 0 then remember(cut(k), 0) end
  return k
end

local aged = 0

-- Removes what is older than its life. Answers how many.
local function expire()
  if n == 0 or oldest + ttl > now then return 0 end
  local expired = cut_while(function(entry) return unpack_('>I6', entry, 11) + ttl <= now end)
  if expired > 0 then count('dropped.age', expired) end
  aged = aged + expired
  return expired
end

-- The same for pairs: their operation ids.
local function remember_talk(pairs_gone)
  local gone, ids = base .. 'g:' .. member, {}
  for i, pair in ipairs(pairs_gone) do ids[i] = string.sub(pair, 12, 19) .. '\0\0' end
  call('RPUSH', gone, pack_('>I6I8', now, 0) .. table.concat(ids))
  call('PEXPIRE', gone, REMEMBER)
end

-- Was what had this fence acknowledged?
local function was_acked(id)
  for _, entry in ipairs(call('LRANGE', base .. 'g:' .. member, 0, -1)) do
    if unpack_('>I8', entry, 7) == id then return true end
  end
  return false
end

-- Is a message, or a pair, of this operation here no more?
local function was_op(op)
  for _, entry in ipairs(call('LRANGE', base .. 'g:' .. member, 0, -1)) do
    for at = 15, #entry, 10 do
      if string.sub(entry, at, at + 7) == op then return true end
    end
  end
  return false
end

-- Writes the record, its place in the index and its life; a buffer with nothing in it leaves nothing.
local function finish(quietly, number)
  if b == 0 then expire() end
  schedule(quietly, number)
  local first = n > 0 and oldest or 0
  if first ~= known_oldest then rank('old', first) end
  if size_class(n) ~= size_class(known_n) then rank('big', size_class(n) > 0 and n or 0) end
  if n == 0 and b == 0 then
    call('DEL', key, base .. 'a:' .. member)
    return
  end
  write()
  local ms = life()
  call('PEXPIRE', key, ms)
  if np + nf > 0 then call('PEXPIRE', base .. 'a:' .. member, ms) end
  if bc > 0 then call('PEXPIRE', base .. 'c:' .. member, ms, 'GT') end
end
