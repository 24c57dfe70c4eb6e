#!lua flags=allow-oom
-- runs/events         retry: safe
-- KEYS  1 run         hash
--       2 events      stream
-- ARGV  1 base        what the collection's keys start with
--       2 run         as it stands in keys
--       3 after       id of the last event seen; 0-0: none
--       4 count       entries of the stream, at most
-- returns found | missing
-- found: 1 if the run has ended, id of the last event, id of the last one dropped, how many were, entries

-- include move
base = ARGV[1]
if not read(ARGV[2]) then return {'missing'} end
judge()
local entries = call('XRANGE', KEYS[2], '(' .. ARGV[3], '+', 'COUNT', ARGV[4])
return {'found', state > STOPPING and 1 or 0, string.format('%d-%d', last_ms, last_seq),
  string.format('%d-%d', gone_ms, gone_seq), dropped, entries}
