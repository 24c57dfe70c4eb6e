#!lua flags=no-writes
-- sessions/look       retry: safe
-- KEYS  1 session     list
-- returns found | missing | unreadable
-- found: entries, tokens, bytes, ms left to live; unreadable: 1 if made by a newer version

-- include meta
if not meta then return {'missing'} end
if not readable then return {'unreadable', newer} end
return {'found', count, tokens, bytes, call('PTTL', KEYS[1])}
