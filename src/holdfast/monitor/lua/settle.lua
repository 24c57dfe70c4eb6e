#!lua
-- monitor/settle      retry: safe
-- KEYS  1 wait        zset
--       2 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the monitor's keys start with
--       2 most        changes in the log
--       3 count       things at most
-- returns found
-- found: how many were told, ms until the next (-1: none)

-- include time
-- include told
-- include log
local told = 0
for _, name in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local text = call('GET', base_key('s:') .. name)
  local thing = text and parse_told(text)
  if thing and thing.now ~= thing.told then
    if not room(tonumber(ARGV[2])) then break end
    note_told(thing, thing.now, thing.op)
    add('s', thing.before, '', thing.state, thing.observed)
    call('SET', base_key('s:') .. name, told_text(thing), 'KEEPTTL')
    told = told + 1
  end
  call('ZREM', KEYS[1], name)
end
added()
local first = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
return {'found', told, first and math.max(0, tonumber(first) - now) or -1}
