#!lua
-- runs/claim          retry: safe
-- KEYS  1 run         hash
--       2 held        zset
--       3 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 run         as it stands in keys
--       3 digest      of key, kind and input, for a run that is new
--       4 limits      slots (2 bytes), ms it lives after its end (5), events (4), bytes of events (5)
--       5 key         as it stands in keys; empty: none
--       6 kind
--       7 input
--       8 token       repeating with the same token answers the same
--       9 owner       as it stands in keys
--      10 lease       ms
--      11 attempts    that it may have
--      12 archive     1: keep it listed for the archive
-- returns taken | busy | ended
-- taken: server ms, run: id, fence, attempt, ms, key, kind, input, checkpoint, steps, 1 if it should stop
-- busy: server ms, run that has it or its key, record; ended: server ms, run, record

-- include enter
-- include give
base = ARGV[1]
local run, key = ARGV[2], ARGV[5]
if find(run) then
  if mine(ARGV[8]) then return {'taken', now, handed()} end
  judge()
  if state > STOPPING then return {'ended', now, run, describe(run)} end
  if owned() then return {'busy', now, run, describe(run)} end
  if has(WAITS) then
    local slot = call('HGET', KEYS[1], 'k')
    active(slot, slots)
    read(run)
    local holder = call('ZRANGE', base .. 'a:' .. slot, 0, 0)[1]
    if has(WAITS) then return {'busy', now, holder, describe(holder)} end
  end
else
  if key ~= '' then
    local most = unpack_('>I2', ARGV[4])
    if active(key, most) >= most then
      local holder = call('ZRANGE', base .. 'a:' .. key, 0, 0)[1]
      return {'busy', now, holder, describe(holder)}
    end
  end
  id = run
  create(key, false, ARGV[4], ARGV[3], ARGV[7], ARGV[6], ARGV[12] == '1')
  if state > STOPPING then return {'ended', now, run, describe(run)} end
end
set(GUARD)
give(ARGV[8], ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]))
return {'taken', now, handed()}
