#!lua
-- sessions/resave     retry: opid
-- KEYS  1 session     list
-- ARGV  1 ttl         ms it lives at least from now on
--       2 entries     most entries
--       3 bytes       most bytes
--       4 tokens      most tokens; 0: any number
--       5 life        the session must be the one that was made by this save; empty: any, or a new one
--       6 opid        id of this save, in hex: what is here already is not stored again
--       7 window      ms in which an earlier request of this save may have been executed
--       8.. parts     for each entry: version and id, then all that follows the time
-- returns stored | replayed | changed | doubtful | unreadable
-- stored: as sessions/save; replayed: entries now, life; unreadable: 1 if made by a newer version
-- doubtful: it may have been stored and removed again since

-- include save
if not readable then return {'unreadable', newer} end
if find(8) then
  live(ARGV[1])
  return {'replayed', count, life}
end
if meta and cut >= now - tonumber(ARGV[7]) then return {'doubtful'} end
-- The first request may still be on its way: for a while it is known and stores nothing.
marked = string.sub(ARGV[6] .. (mark > now and marked or ''), 1, MARKED)
mark = now + MARK
return store(8)
