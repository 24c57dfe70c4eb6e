#!lua
-- fleet/gauges        retry: safe
-- KEYS  1 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the fleet's keys start with
--       2.. pairs     gauge and its value now
-- returns reported
-- reported: server ms

-- include time
local short = ARGV[1] .. string.format('s:%d', (now - now % 10000) / 10000)
local long = ARGV[1] .. string.format('m:%d', (now - now % 300000) / 300000)
for i = 2, #ARGV, 2 do
  call('HSET', short, 'g:' .. ARGV[i], ARGV[i + 1])
  call('HSET', long, 'g:' .. ARGV[i], ARGV[i + 1])
end
call('PEXPIRE', short, 7200000)
call('PEXPIRE', long, 259200000)
return {'reported', now}
