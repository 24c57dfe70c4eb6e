#!lua
-- runs/start          retry: safe
-- KEYS  1 run         hash
--       2 held        zset
--       3 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 run         as it stands in keys
--       3 digest      of key, kind and input: the same run id with another one is a mistake
--       4 limits      slots (2 bytes), ms it lives after its end (5), events (4), bytes of events (5)
--       5 key         as it stands in keys; empty: none
--       6 conflict    reject | queue | replace | join
--       7 kind
--       8 input
--       9 waiting     runs that may wait for this key
--      10 queued      runs that may be queued in the collection
--      11 archive     1: keep it listed for the archive
-- returns created | exists | mismatch | busy | joined | full
-- created, exists, mismatch: server ms, run, record; busy, joined: the same of the run that has the slot
-- full: key or collection, how many; replace stops who has the slot, and the new run waits for its end

-- include enter
-- include halt
base = ARGV[1]
local run, key = ARGV[2], ARGV[5]
if find(run) then
  judge()
  local same = call('HGET', KEYS[1], 'd') == ARGV[3]
  return {same and 'exists' or 'mismatch', now, run, describe(run)}
end

-- Who stops others for itself must know before that there is room.
local function full()
  return call('ZCARD', base .. 'is:queued') >= tonumber(ARGV[10])
end

local waits = false
if key ~= '' then
  local holders, most = base .. 'a:' .. key, unpack_('>I2', ARGV[4])
  local held, waiting = active(key, most), call('ZCARD', base .. 'w:' .. key)
  if ARGV[6] == 'replace' and held + waiting >= most and (waiting > 0 or not full()) then
    for _, other in ipairs(call('ZRANGE', base .. 'w:' .. key, 0, -1)) do
      if read(other) then halt('replaced by ' .. run) end
    end
    local running = {}
    for _, other in ipairs(call('ZRANGE', holders, 0, -1)) do
      if read(other) and stop_at == 0 then running[#running + 1] = other end
    end
    for i = 1, #running - most + 1 do
      read(running[i])
      halt('replaced by ' .. run)
    end
    held, waiting = call('ZCARD', holders), 0
  end
  if held >= most or waiting > 0 then
    if ARGV[6] == 'reject' then
      local other = call('ZRANGE', holders, 0, 0)[1]
      return {'busy', now, other, describe(other)}
    elseif ARGV[6] == 'join' then
      -- The newest that is not about to end; where all are, the new one waits for them.
      for _, other in ipairs(call('ZREVRANGE', holders, 0, -1)) do
        if read(other) and stop_at == 0 then return {'joined', now, other, describe(other)} end
      end
    end
    if waiting >= tonumber(ARGV[9]) and ARGV[6] ~= 'replace' then return {'full', 'key', waiting} end
    waits = true
  end
end
if full() then return {'full', 'collection', call('ZCARD', base .. 'is:queued')} end
id = run
create(key, waits, ARGV[4], ARGV[3], ARGV[8], ARGV[7], ARGV[11] == '1')
if state == QUEUED and not waits then wake() end
return {'created', now, run, describe(run)}
