#!lua flags=allow-oom
-- monitor/peek        retry: safe
-- KEYS  1 log         stream
--       2 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the monitor's keys start with
--       2 reader      the kind of reader: one process at a time reads on for all of that kind
--       3 token       of this process
--       4 count       changes at most
--       5 lease       ms after which another may read on
--       6 store       1: this process knows the subscribers in SQL; 0: it reads only where nobody does
-- returns found | empty | busy
-- found, empty: server time in microseconds, version of the subscribers, where it begins, then the changes. busy: ms

-- include time
-- include log
local lock = base_key('p:' .. ARGV[2])
local holder = call('GET', lock)
local others = known(call('HGET', base_key('cur'), 'history@')) > now - KEEP
if ARGV[6] == '0' and others then return {'busy', DAY} end
if holder and holder ~= ARGV[3] then return {'busy', call('PTTL', lock)} end
local from = call('HGET', base_key('cur'), ARGV[2])
if not from then
  -- From the oldest that is still there: what was found before anybody read is told, too.
  from = '0'
  call('HSET', base_key('cur'), ARGV[2], from)
end
call('HSET', base_key('cur'), ARGV[2] .. '@', string.format('%d', now))
for _, name in ipairs({'cur', 'code', 'subs', 'seq', 'log'}) do keep(name) end
local changes = call('XRANGE', KEYS[1], '(' .. from .. '-0', '+', 'COUNT', ARGV[4])
local version = call('GET', base_key('subs')) or '0'
if #changes == 0 then
  call('DEL', lock)
  return {'empty', now_us, version, from, changes}
end
call('SET', lock, ARGV[3], 'PX', ARGV[5])
return {'found', now_us, version, from, changes}
