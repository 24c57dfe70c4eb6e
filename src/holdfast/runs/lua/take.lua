#!lua
-- runs/take           retry: never
-- KEYS  1 due         zset
--       2 held        zset
--       3 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 worker      whom to wake when there is something to run
--       3 owner       as it stands in keys
--       4 lease       ms
--       5 attempts    that a run may have
--       6 stuck       ms without progress after which a run is reported
--       7.. tokens    one for each run that may be taken
-- returns taken
-- taken: ms until somebody must look again (-1: nothing is queued or running), idle workers, stuck runs,
--        then each run: id, fence, attempt, ms, key, kind, input, checkpoint, steps, 1 if it should stop

-- include give
-- include stuck
base = ARGV[1]
local LATER, LARGE = 5000000, 4194304
local number = 6
sweep(tonumber(ARGV[4]))
local answer = {'taken', 0, 0, report(tonumber(ARGV[6]))}
local size = 0
for _, run in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', now_us, 'LIMIT', 0, #ARGV - 6)) do
  if size > LARGE then
    break  -- the answer must arrive in time
  elseif read(run) and state == QUEUED then
    number = number + 1
    give(ARGV[number], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
    local one = handed()
    size = size + #(one[7] or '') + #(one[8] or '')
    for i = 2, #one[9], 2 do size = size + #one[9][i] end
    answer[#answer + 1] = one
  elseif newer then
    call('ZADD', KEYS[1], now_us + LATER, run)  -- by then a newer worker may have looked
  else
    call('ZREM', KEYS[1], run)
  end
end
answer[2] = ms_to_end()
local first = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if first then
  local wait = math.max(0, math.ceil((first - now_us) / 1000))
  if answer[2] < 0 or wait < answer[2] then answer[2] = wait end
end
if #ARGV > number then
  call('ZADD', base .. 'idle', now, ARGV[2])
  call('ZREMRANGEBYSCORE', base .. 'idle', '-inf', now - 600000)
  call('PEXPIRE', base .. 'idle', 3600000)
else
  -- Full: it must not be woken for what it cannot take.
  call('ZREM', base .. 'idle', ARGV[2])
  if first and tonumber(first) <= now_us then wake() end
end
answer[3] = call('ZCARD', base .. 'idle')
return answer
