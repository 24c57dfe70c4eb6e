-- include record
local PUSH_MOST = 65536
-- What an entry that says that the run was taken over counts for.
local MARK = 32

-- The next event's id: server time and a sequence, never lower than an earlier one. Time, so that after a failover that
-- forgot the last events no id is given out twice.
local function next_id(count)
  if now > last_ms then
    last_ms, last_seq = now, count - 1
  else
    last_seq = last_seq + count
  end
  return string.format('%d-%d', last_ms, last_seq)
end

-- Tells every process that reads this run of the next event, and what was the last one before.
local function announce(count, blob)
  local before = string.format('%d-%d', last_ms, last_seq)
  local at = next_id(count)
  call('SPUBLISH', base .. 'ev:' .. id, before .. ' ' .. at .. ' ' .. blob)
  return at
end

-- Adds to the stream and tells of it: with the events, if they are few bytes.
local function add(count, field, value, ...)
  local first = last_ms == 0
  local at = announce(count, field == 'b' and #value <= PUSH_MOST and value or '')
  call('XADD', base .. 'e:' .. id, at, field, value, ...)
  if first then call('PEXPIRE', base .. 'e:' .. id, LIFE) end
end

-- Makes room for so many events and bytes, and an eighth more, so that not every event has to: the oldest go.
local function trim(count, size)
  if kept + count <= max_events and bytes + size <= max_bytes then return 0 end
  local most, large = max_events - math.floor(max_events / 8), max_bytes - math.floor(max_bytes / 8)
  local before, keep = dropped, nil
  while not keep and kept > 0 do
    local oldest = call('XRANGE', base .. 'e:' .. id, '-', '+', 'COUNT', 16)
    if #oldest == 0 then kept, bytes, dropped = 0, 0, dropped + kept end
    for _, entry in ipairs(oldest) do
      if kept + count <= most and bytes + size <= large then
        keep = entry[1]
        break
      end
      local held, size_of = 1, MARK
      if entry[2][1] == 'b' then held, size_of = unpack_('>I2', entry[2][2]), #entry[2][2] end
      kept, bytes, dropped = kept - held, bytes - size_of, dropped + held
      local ms, seq = string.match(entry[1], '^(%d+)-(%d+)$')
      gone_ms, gone_seq = tonumber(ms), tonumber(seq)
      if kept <= 0 then break end
    end
    call('XTRIM', base .. 'e:' .. id, 'MINID', keep or string.format('%d-%d', gone_ms, gone_seq + 1))
  end
  return dropped - before
end

-- Stores a batch of events. Answers how many old ones were dropped for it.
local function emit(blob)
  local count = unpack_('>I2', blob)
  local lost = trim(count, #blob)
  add(count, 'b', blob)
  kept, bytes = kept + count, bytes + #blob
  return lost
end
