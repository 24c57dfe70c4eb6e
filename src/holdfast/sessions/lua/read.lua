#!lua flags=no-writes
-- sessions/read       retry: safe
-- KEYS  1 session     list
-- ARGV  1 limit       the newest so many
-- returns found | unreadable
-- found: entries, oldest first, empty if there is no session; unreadable: 1 if made by a newer version

-- include meta
if not readable then return {'unreadable', newer} end
return {'found', call('LRANGE', KEYS[1], math.max(1, call('LLEN', KEYS[1]) - tonumber(ARGV[1])), -1)}
