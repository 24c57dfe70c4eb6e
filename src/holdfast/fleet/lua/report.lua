#!lua
-- fleet/report        retry: opid
-- KEYS  1 process     hash
--       2 alive       zset
--       3 names       zset
--       4 totals      hash
-- ARGV  1 base        what the fleet's keys start with
--       2 process     its id
--       3 opid        number of this report by this process: a repeated one counts nothing again
--       4 record      what it says of itself, opaque
--       5 bye         1: it ends here
--       6 count       names that follow
--       7.. names     of collections in use, as kind:name; then pairs: a counter, and by how much it rose
-- returns reported | replayed
-- reported, replayed: server ms, 1 if the process was not known

-- include time
local HOUR, DAY = 3600000, 86400000
local base, id = ARGV[1], ARGV[2]
if ARGV[5] == '1' then call('ZREM', KEYS[2], id) end
local known = call('HGET', KEYS[1], 'number')
if known and tonumber(known) >= tonumber(ARGV[3]) then return {'replayed', now, 0} end
local new = call('HSETNX', KEYS[1], 'since', now)
call('HSET', KEYS[1], 'number', ARGV[3], 'record', ARGV[4])
call('PEXPIRE', KEYS[1], HOUR)
if ARGV[5] ~= '1' then
  call('ZADD', KEYS[2], now, id)
  call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - HOUR)
  call('PEXPIRE', KEYS[2], HOUR)
end

local first = 7 + tonumber(ARGV[6])
for i = 7, first - 1 do call('ZADD', KEYS[3], now, ARGV[i]) end
if first > 7 then
  call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - 30 * DAY)
  call('ZREMRANGEBYRANK', KEYS[3], 0, -10001)
  call('PEXPIRE', KEYS[3], 30 * DAY)
end

if #ARGV > first then
  local short = base .. string.format('s:%d', (now - now % 10000) / 10000)
  local long = base .. string.format('m:%d', (now - now % 300000) / 300000)
  for i = first, #ARGV, 2 do
    call('HINCRBY', short, ARGV[i], ARGV[i + 1])
    call('HINCRBY', long, ARGV[i], ARGV[i + 1])
    -- How long things took is of interest over time only.
    if string.sub(ARGV[i], 1, 2) ~= 't:' then call('HINCRBY', KEYS[4], ARGV[i], ARGV[i + 1]) end
  end
  call('PEXPIRE', short, 2 * HOUR)
  call('PEXPIRE', long, 3 * DAY)
  call('PEXPIRE', KEYS[4], 366 * DAY)
end
return {'reported', now, new}
