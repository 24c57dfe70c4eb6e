#!lua flags=no-writes
-- monitor/roll        retry: safe
-- KEYS  1 code        hash
--       2 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the monitor's keys start with
--       2.. names     of subscribers
-- returns found
-- found: version of the subscribers, changes in the log, dead letters, the functions, then for each name how many changes
-- wait, attempts so far, failures in a row

local call = redis.call
local base = ARGV[1]
local answer = {
  'found', call('GET', base .. 'subs') or '0', call('XLEN', base .. 'log'), call('XLEN', base .. 'dead'),
  call('HGETALL', KEYS[1]),
}
for i = 2, #ARGV do
  local attempt, bad = unpack(call('HMGET', base .. 'd:' .. ARGV[i], 'attempt', 'bad'))
  answer[#answer + 1] = {call('LLEN', base .. 'q:' .. ARGV[i]), attempt or '0', bad or '0'}
end
return answer
