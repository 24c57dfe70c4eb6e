-- include emit
-- Tells one idle worker that a run is there. A dead one does not listen and is forgotten.
local function wake()
  for _ = 1, 16 do
    local worker = call('ZPOPMAX', base .. 'idle')[1]
    if not worker then return end
    if call('SPUBLISH', base .. 'sig:' .. string.sub(worker, 1, 16), 'work ' .. worker .. ' 0') > 0 then return end
  end
end

-- From one state to another; the index that the run leaves and the one that it enters.
local function enter(new, score)
  if state ~= new then
    call('ZREM', base .. 'is:' .. STATES[state], id)
    state = new
  end
  index('is:' .. STATES[new], score, id)
end

local function disown(owner)
  if owner and owner ~= '' then call('ZREM', base .. 'o:' .. owner, id) end
end

-- Gives free slots of a key to those that wait, first come first served. Other runs than the caller's are read: it must
-- have written its own down.
local function promote(key)
  while true do
    local head = call('ZRANGE', base .. 'w:' .. key, 0, 0, 'WITHSCORES')
    if not head[1] then return end
    if not read(head[1]) then
      if newer then return end
      drop('w:' .. key, head[1])
    else
      if call('ZCARD', base .. 'a:' .. key) >= slots then return end
      call('ZREM', base .. 'w:' .. key, id)
      index('a:' .. key, head[2], id)
      unset(WAITS)
      write()
      index('due', head[2], id)
      wake()
    end
  end
end

-- Takes what is too old out of an index, a number at a time.
local function prune(name, before)
  local old = call('ZRANGEBYSCORE', base .. name, '-inf', before, 'LIMIT', 0, 100)
  if #old > 0 then call('ZREM', base .. name, unpack(old)) end
end

-- Ends the run, for good: state, the id of its last event, indexes, life. Reads other runs if its key has some that wait.
local function finish(new, reason, result)
  local run, life = id, retention
  local owner, key = unpack(call('HMGET', base .. 'r:' .. id, 'o', 'k'))
  disown(owner)
  local place = state ~= QUEUED and 'held' or has(GUARD) and 'orphans' or 'due'
  announce(1, '')
  ended, deadline = now, 0
  unset(WAITS)
  unstick()
  enter(new, now)
  prune('is:' .. STATES[new], now - life)
  write('w', reason, 'v', result)
  call('ZREM', base .. place, id)
  call('PEXPIRE', base .. 'r:' .. id, life)
  call('PEXPIRE', base .. 'e:' .. id, life)
  if has(STEPS) then call('UNLINK', base .. 's:' .. id) end
  if has(ARCHIVE) then index('arch', now, id) end
  if key and key ~= '' then
    call('ZREM', base .. 'a:' .. key, id)
    call('ZREM', base .. 'w:' .. key, id)
    call('ZADD', base .. 'h:' .. key, now, id)
    prune('h:' .. key, now - life)
    call('PEXPIRE', base .. 'h:' .. key, 2 * life)
    promote(key)
    read(run)
  end
end

-- Back to the queue: nobody has it. One that was claimed by somebody who is no runner waits for that one's return.
local ORPHAN = 7200000
local function requeue(at)
  disown(call('HGET', base .. 'r:' .. id, 'o'))
  deadline, span = 0, 0
  unstick()
  enter(QUEUED, now)
  write('o', '')
  call('ZREM', base .. 'held', id)
  if has(GUARD) then
    index('orphans', now + ORPHAN, id)
  else
    index('due', at, id)
    if at <= now_us then wake() end
  end
end

-- After its owner's time is over: ended, or back in the queue. Whoever comes along does this, so that nothing says
-- "running" for ever.
local function judge()
  if owned() and deadline - now > span then
    -- The server's clock was set back: a dead owner must not gain by it, and a live one renews.
    deadline = now + span
    write()
    index('held', deadline, id)
  end
  if state > STOPPING or owned() then return end
  if state == QUEUED then
    if has(GUARD) and tonumber(call('ZSCORE', base .. 'orphans', id) or 0) <= now then finish(FAILED, 'worker lost', '') end
    return
  end
  token = ''  -- the old owner, should it come back, must not take this for its own doing
  if stop_at > 0 then
    finish(STOPPED, call('HGET', base .. 'r:' .. id, 'p') or '', '')
  elseif attempt - free >= tries then
    finish(FAILED, 'worker lost', '')
  else
    requeue(created * 1000)
  end
end

-- Judges those whose owner's time is over, a number of them; and those whose end is further away than `lease`, which
-- most are given: after the clock was set back they would be found late.
local function sweep(lease)
  local last = lease and call('ZREVRANGE', base .. 'held', 1, 1, 'WITHSCORES')[2]
  if last and last - now > lease then
    for _, run in ipairs(call('ZREVRANGE', base .. 'held', 1, 16)) do
      if read(run) then judge() end
    end
  end
  for _, run in ipairs(call('ZRANGEBYSCORE', base .. 'held', '-inf', now, 'LIMIT', 0, 32)) do
    if not read(run) then
      drop('held', run)
    elseif owned() then
      call('ZADD', base .. 'held', deadline, run)
    else
      judge()
    end
  end
  for _, run in ipairs(call('ZRANGEBYSCORE', base .. 'orphans', '-inf', now, 'LIMIT', 0, 8)) do
    if read(run) then judge() else drop('orphans', run) end
  end
end

-- Ms until the next lease is over; -1: nothing is owned.
local function ms_to_end()
  local over = call('ZRANGE', base .. 'held', 0, 0, 'WITHSCORES')
  if not over[1] or over[1] == '!' then return -1 end
  return math.max(0, over[2] - now)
end
