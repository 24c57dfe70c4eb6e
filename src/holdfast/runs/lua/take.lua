#!lua
-- runs/take           retry: never
-- KEYS  1 due         zset
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
base = ARGV[1]
local stuck = {}
local answer = {'taken', 0, 0, stuck}
local free, number = #ARGV - 6, 6
sweep(tonumber(ARGV[4]))
for _, run in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', now_us, 'LIMIT', 0, free)) do
  if not read(run) or state ~= QUEUED then
    call('ZREM', KEYS[1], run)
  else
    number = number + 1
    give(ARGV[number], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))
    answer[#answer + 1] = handed()
  end
end
free = #ARGV - number
-- Who makes no progress is told of once; progress makes that undone.
for _, run in ipairs(call('ZRANGEBYSCORE', base .. 'is:running', '-inf', now - tonumber(ARGV[6]), 'LIMIT', 0, 16)) do
  if not read(run) then
    call('ZREM', base .. 'is:running', run)
  elseif now - progress < tonumber(ARGV[6]) then
    index('is:running', progress, run)
  else
    if not has(STUCK) then
      set(STUCK)
      write()
      stuck[#stuck + 1] = run
    end
    index('is:running', now, run)
  end
end
answer[2] = ms_to_end()
local first = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if first then
  local wait = math.max(0, math.ceil((first - now_us) / 1000))
  if answer[2] < 0 or wait < answer[2] then answer[2] = wait end
end
if free > 0 then
  call('ZADD', base .. 'idle', now, ARGV[2])
  call('ZREMRANGEBYSCORE', base .. 'idle', '-inf', now - 600000)
  call('PEXPIRE', base .. 'idle', 3600000)
elseif first and tonumber(first) <= now_us then
  wake()
end
answer[3] = call('ZCARD', base .. 'idle')
return answer
