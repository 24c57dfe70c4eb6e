#!lua flags=allow-oom
-- monitor/forget      retry: safe
-- KEYS  1.. things    string
-- ARGV  1 base        what the monitor's keys start with
-- returns removed
-- removed: how many

local count = 0
for i = 1, #KEYS do
  count = count + redis.call('DEL', KEYS[i])
  redis.call('ZREM', ARGV[1] .. 'wait', string.sub(KEYS[i], #ARGV[1] + 3))
end
return {'removed', count}
