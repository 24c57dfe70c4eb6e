-- include letter
-- What a holder of the batch is told.
local taken
local function tell(next_look_ms)
  local entries, files = taken or call('LRANGE', key, 1, b), {}
  for _, entry in ipairs(entries) do
    if string.byte(entry, 17) == 1 then
      files = call('HGETALL', base .. 'a:' .. member)
      break
    end
  end
  local talk = bc > 0 and call('LRANGE', base .. 'c:' .. member, 0, bc - 1) or {}
  return {'taken', member, batch, fence, attempt, deadline - now, n, now, entries, talk, files, next_look_ms, aged, buried}
end

-- Takes what waits, or the batch whose holder is gone. False if there is nothing to take.
-- The caller has seen to it that nobody holds a batch, and that it was not tried too often.
local function take(holder, lease, most)
  expire()
  fence = next_fence()
  if b == 0 then
    local k = ready(most)
    if k == 0 then
      finish(true)
      return false
    end
    bc = math.min(prune_talk(), 1000)
    local skip = popped and 0 or 1
    taken = call('LRANGE', key, skip, skip + k - 1)
    for _, entry in ipairs(taken) do
      bytes = bytes - #entry
      if string.byte(entry, 17) == 1 then
        np, nf = np - 1, nf + 1
        call('HSET', base .. 'a:' .. member, string.sub(entry, 1, 10), 'taken')
      end
    end
    n, b, batch, attempt = n - k, k, fence, 0
    if n == 0 then force = 0 end
    local head = n > 0 and call('LINDEX', key, skip + b)
    oldest = head and unpack_('>I6', head, 11) or 0
  else
    count('redelivered', 1)
  end
  attempt, token, deadline, span = attempt + 1, holder, now + lease, lease
  finish(true, fence)
  return true
end
