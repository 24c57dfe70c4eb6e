-- include move
-- A new run: in the queue, or waiting for a slot of its key.
local function create(key, waits, limits, digest, input, kind, archive)
  slots, retention, max_events, max_bytes = unpack_('>I2I5I4I5', limits)
  flags = (archive and ARCHIVE or 0) + (waits and WAITS or 0)
  state, attempt, tries, free, fence, deadline, span, token = QUEUED, 0, 0, 0, 0, 0, 0, ''
  created, started, ended, progress, stop_at = now, 0, 0, 0, 0
  last_ms, last_seq, kept, bytes, dropped, gone_ms, gone_seq, batch, saved_ms, saved_seq = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  local wish = call('HGET', base .. 'r:' .. id, 'p')
  write('d', digest, 'i', input, 'k', key, 'y', kind)
  touch()
  index('is:queued', now, id)
  if waits then
    index('w:' .. key, now_us, id)
  else
    if key ~= '' then index('a:' .. key, now_us, id) end
    index('due', now_us, id)
  end
  -- Somebody wanted it to stop before it was there.
  if wish then finish(STOPPED, wish, '') end
end

-- How many runs have a slot of the key. Where all are taken, those whose owner is lost are ended first; a number of
-- them, so that it costs the same whatever the number of slots.
local function active(key, most)
  local name = base .. 'a:' .. key
  if call('ZCARD', name) >= most then
    sweep()
    local head = call('ZRANGE', name, 0, 0)[1]
    if head and read(head) then judge() elseif head then drop('a:' .. key, head) end
  end
  promote(key)  -- the key may have more slots than before
  return call('ZCARD', name)
end
