#!lua
-- monitor/enlist      retry: safe
-- KEYS  1 code        hash
--       2 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the monitor's keys start with
--       2.. pairs     name and record of each subscriber that is a function
-- returns settled
-- settled: version of the subscribers

-- include time
-- include log
local changed = #ARGV == 1
if changed then
  -- Somebody has changed those in SQL: processes that do not know these must not read on for all.
  call('HSET', base_key('cur'), 'history@', string.format('%d', now))
  keep('cur')
end
for i = 2, #ARGV, 2 do
  if call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then
    call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    changed = true
  end
end
call('PEXPIRE', KEYS[1], KEEP)
if changed then changed_subscribers() end
keep('subs')
return {'settled', call('GET', base_key('subs')) or '0'}
