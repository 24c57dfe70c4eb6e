#!lua flags=allow-oom
-- fleet/record        retry: opid
-- KEYS  1 audit       stream
--       2 outcomes    hash
-- ARGV  1 opid        repeating with the same id records nothing more
--       2 action
--       3 target
--       4 reason      free text
--       5 by          who did it, free text
-- returns recorded | replayed
-- recorded, replayed: id of the entry

-- include time
local LENGTH, LIFE = 10000, 7776000000
for _, entry in ipairs(call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 20)) do
  if entry[2][2] == ARGV[1] then return {'replayed', entry[1]} end
end
local id = call('XADD', KEYS[1], 'MAXLEN', '~', LENGTH, '*',
  'op', ARGV[1], 'action', ARGV[2], 'target', ARGV[3], 'reason', ARGV[4], 'by', ARGV[5])
call('PEXPIRE', KEYS[1], LIFE)
-- Outcomes of actions that are no longer in the log go, all at once when they have become as many as those that are.
if call('HLEN', KEYS[2]) > 2 * LENGTH then
  local first = tonumber(string.match(call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][1], '^%d+'))
  for _, entry in ipairs(call('HKEYS', KEYS[2])) do
    if tonumber(string.match(entry, '^%d+')) < first then call('HDEL', KEYS[2], entry) end
  end
end
return {'recorded', id}
