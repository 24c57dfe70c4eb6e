#!lua flags=allow-oom
-- runs/events         retry: safe
-- KEYS  1 run         hash
--       2 events      stream
--       3 held        zset
--       4 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 run         as it stands in keys
--       3 after       id of the last event seen; 0-0: none
--       4 count       entries of the stream, at most
-- returns found | missing
-- found: state, id of the last event, id of the last one dropped, how many were, entries, and if it has ended, which is
--        its last event: reason, result

-- include move
base = ARGV[1]
if not find(ARGV[2]) then return {'missing'} end
judge()
local entries = call('XRANGE', KEYS[2], '(' .. ARGV[3], '+', 'COUNT', ARGV[4])
local ended_by = state > STOPPING and call('HMGET', KEYS[1], 'w', 'v') or {}
return {'found', STATES[state], string.format('%d-%d', last_ms, last_seq),
  string.format('%d-%d', gone_ms, gone_seq), dropped, entries, ended_by[1], ended_by[2]}
