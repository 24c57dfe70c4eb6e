-- include move
-- Fences only grow. Counter and clock in one, so that a failover that forgot the last ones cannot go back below the time
-- they were given out.
local function next_fence()
  local last = tonumber(call('ZSCORE', base .. 'held', '!') or 0)
  return last < now_us and now_us or last + 1
end

-- Makes somebody the owner of a queued run. What an earlier attempt emitted after its last checkpoint is marked as repeated.
local function give(holder, owner, lease, most)
  fence = next_fence()
  attempt, tries, token, batch = attempt + 1, most, holder, 0
  deadline, span, progress = now + lease, lease, now
  if started == 0 then started = now end
  unstick()
  if attempt > 1 then
    trim(1, MARK)
    add(1, 'r', string.format('%d', attempt), 'after', string.format('%d-%d', saved_ms, saved_seq))
    kept, bytes = kept + 1, bytes + MARK
  end
  call('ZREM', base .. 'due', id)
  if attempt > 1 then call('ZREM', base .. 'orphans', id) end
  enter(RUNNING, now)
  write('o', owner)
  touch()
  index('held', deadline, id, fence, '!')
  index('o:' .. owner, now, id)
end

-- What the new owner is told: id, fence, attempt, ms, key, kind, input, checkpoint, steps, 1 if it should stop.
local function handed()
  local f = call('HMGET', base .. 'r:' .. id, 'k', 'y', 'i', 'c')
  local steps = attempt > 1 and call('HGETALL', base .. 's:' .. id) or {}
  return {id, fence, attempt, deadline - now, f[1], f[2], f[3], f[4], steps, stop_at > 0 and 1 or 0}
end
