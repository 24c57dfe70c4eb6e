#!lua
-- sessions/save       retry: never
-- KEYS  1 session     list
-- ARGV  1 ttl         ms it lives at least from now on
--       2 entries     most entries
--       3 bytes       most bytes
--       4 tokens      most tokens; 0: any number
--       5 life        the session must be the one that was made by this save; empty: any, or a new one
--       6 batch       id of this save, in hex
--       7.. parts     for each entry: version and id, then all that follows the time
-- returns stored | changed | doubtful | unreadable
-- stored: entries now, life, 1 if over the token budget, 1 or 0 for each entry kept, trimmed for each reason
-- doubtful: a repeated request of the same save came before; unreadable: 1 if made by a newer version

-- include save
if not readable then return {'unreadable', newer} end
if mark > now and string.find(marked, ARGV[6], 1, true) then return {'doubtful'} end
return store(7)
