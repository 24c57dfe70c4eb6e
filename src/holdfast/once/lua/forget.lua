#!lua flags=allow-oom
-- once/forget         retry: safe
-- KEYS  1.. ids       string
-- ARGV  1 mark        forget only what this one wrote; nothing: whoever wrote it
-- returns removed
-- removed: how many

local count = 0
for i = 1, #KEYS do
  if ARGV[1] == '' or redis.call('GET', KEYS[i]) == ARGV[1] then
    count = count + redis.call('DEL', KEYS[i])
  end
end
return {'removed', count}
