#!lua flags=allow-oom
-- runs/settle         retry: safe
-- KEYS  1 run         hash
--       2 held        zset
--       3 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 run         as it stands in keys
--       3 token
--       4 batch       number of the last write by this owner
--       5 events      the last ones: count (2 bytes), then each: size (4), payload; empty: none
--       6 outcome     completed | failed | stopped | returned | uncounted
--       7 reason
--       8 result
--       9 delay       ms until a returned one may be taken again
-- returns settled | not_held
-- settled: its state now. A run that should stop ends stopped, whatever came of it. returned: back to the queue, if it
--          has attempts left; uncounted: the same, and this attempt does not count

-- include move
base = ARGV[1]
if not find(ARGV[2]) then return {'not_held'} end
if token == ARGV[3] and (state == QUEUED or state > STOPPING) then return {'settled', STATES[state]} end
if not mine(ARGV[3]) then return {'not_held'} end
if ARGV[5] ~= '' and tonumber(ARGV[4]) > batch then
  batch = tonumber(ARGV[4])
  emit(ARGV[5])
end
progress = now
local outcome = ARGV[6]
if stop_at > 0 then
  finish(STOPPED, call('HGET', KEYS[1], 'p') or '', ARGV[8])
elseif outcome == 'completed' then
  finish(COMPLETED, ARGV[7], ARGV[8])
elseif outcome == 'stopped' then
  finish(STOPPED, ARGV[7], ARGV[8])
elseif outcome == 'failed' or (outcome == 'returned' and attempt - free >= tries) then
  finish(FAILED, ARGV[7], ARGV[8])
else
  if outcome == 'uncounted' then free = free + 1 end
  local delay = tonumber(ARGV[9])
  requeue(delay > 0 and now_us + delay * 1000 or created * 1000)
end
return {'settled', STATES[state]}
