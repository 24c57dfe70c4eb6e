#!lua flags=allow-oom
-- monitor/strike      retry: safe
-- KEYS  1 code        hash
--       2 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the monitor's keys start with
--       2 who         the subscriber: it is told nothing more
-- returns removed
-- removed: 1 if it was a function, how many changes it was still to be told of

-- include time
-- include log
local who = ARGV[2]
local left = call('LLEN', base_key('q:' .. who))
local was = known(call('HSTRLEN', KEYS[1], who)) > 0 and 1 or 0
if was == 1 then call('HSET', KEYS[1], who, '') end  -- whoever has the function finds that it is not wanted any more
local list = call('HGET', base_key('d:' .. who), 'list')
call('DEL', base_key('q:' .. who), base_key('d:' .. who))
for _, where in ipairs({'due', 'slow', 'heads', list or 'due'}) do call('ZREM', base_key(where), who) end
changed_subscribers()
return {'removed', was, left}
