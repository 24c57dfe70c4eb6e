#!lua flags=allow-oom
-- sessions/pop        retry: never
-- KEYS  1 session     list
-- ARGV  1 known       newest version of payloads that the caller can read, one byte
-- returns popped | empty | unreadable
-- popped: the newest entry; unreadable: 1 if made by a newer version

-- include change
if not readable then return {'unreadable', newer} end
if count == 0 then return {'empty'} end
local entry = call('LINDEX', KEYS[1], -1)
local made, results = links(entry)
local payload = string.byte(entry, LINKS + 4 * (made + results)) or 0
if (string.byte(entry, 1) or 0) > VERSION or payload > string.byte(ARGV[1]) then return {'unreadable', 1} end
call('RPOP', KEYS[1])
uncount(entry)
write_meta()
return {'popped', entry}
