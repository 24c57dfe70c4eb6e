#!lua
-- runs/write          retry: opid
-- KEYS  1 run         hash
--       2 held        zset
--       3 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 run         as it stands in keys
--       3 token
--       4 opid        number of this write by this owner: a repeated one is known by it
--       5 events      count (2 bytes), then each: size (4), payload; empty: none
--       6 what        c checkpoint, s step; empty: neither
--       7 data        of the checkpoint or step
--       8 name        of the step
-- returns written | replayed | not_held | full
-- written, replayed: 1 if it should stop, old events dropped; full: so many steps has a run at most, nothing was written

-- include emit
local STEPS_MOST = 1000
base = ARGV[1]
if not find(ARGV[2]) or not mine(ARGV[3]) then return {'not_held'} end
local number, lost = tonumber(ARGV[4]), 0
if number <= batch then return {'replayed', stop_at > 0 and 1 or 0, 0} end
if ARGV[6] == 's' and call('HLEN', base .. 's:' .. id) >= STEPS_MOST then return {'full', STEPS_MOST} end
batch = number
if ARGV[5] ~= '' then lost = emit(ARGV[5]) end
-- The index by progress is kept about right: it only has to find runs that made none for long.
if state == RUNNING and now - progress > 10000 then index('is:running', now, id) end
progress = now
unstick()
if ARGV[6] == 'c' then
  saved_ms, saved_seq = last_ms, last_seq
  write('c', ARGV[7])
elseif ARGV[6] == 's' then
  call('HSET', base .. 's:' .. id, ARGV[8], ARGV[7])
  call('PEXPIRE', base .. 's:' .. id, LIFE)
  set(STEPS)
  write()
else
  write()
end
return {'written', stop_at > 0 and 1 or 0, lost}
