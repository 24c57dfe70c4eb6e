#!lua flags=allow-oom
-- monitor/replay      retry: safe
-- KEYS  1 dead        stream
--       2 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the monitor's keys start with
--       2 letter
--       3 again       1: tell it once more, after all that waits; 0: throw it away
-- returns settled | missing
-- settled: how many changes

-- include time
-- include log
local letter = call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
if not letter then return {'missing'} end
local who, count = letter[2][2], 0
for i = 9, #letter[2], 2 do
  count = count + 1
  if ARGV[3] == '1' then call('RPUSH', base_key('q:' .. who), letter[2][i + 1]) end
end
call('XDEL', KEYS[1], ARGV[2])
if ARGV[3] == '1' then
  local state = base_key('d:' .. who)
  local list, bad = letter[2][8], call('HGET', state, 'bad')
  call('HSET', state, 'list', list)
  call('PEXPIRE', state, KEEP)
  local where = base_key((list == 'due' and known(bad) > 0) and 'slow' or list)
  call('ZADD', where, 'NX', now, who)
  call('PEXPIRE', where, KEEP)
  keep('q:' .. who)
  call('SPUBLISH', base_key('ch'), '2')
end
return {'settled', count}
