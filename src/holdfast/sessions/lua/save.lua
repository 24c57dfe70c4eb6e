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

-- include change
-- The whole of most calls: one entry that has to do with no other, within the limits. What else there is to a save is
-- defined below, because each function costs time on every call.
if meta and readable and mark <= now and #ARGV == 8 and (ARGV[5] == '' or ARGV[5] == life) then
  local rest = ARGV[#ARGV]
  local calls, results = string.byte(rest, 5, 6)
  local heavier, larger = tokens + number(rest, 1, 4), bytes + #ARGV[#ARGV - 1] + 6 + #rest
  if calls == 0 and results == 0 and count < tonumber(ARGV[2]) and larger <= tonumber(ARGV[3])
      and (ARGV[4] == '0' or heavier <= tonumber(ARGV[4])) then
    count, tokens, bytes, last = count + 1, heavier, larger, math.max(now, last)
    call('RPUSH', KEYS[1], ARGV[#ARGV - 1] .. struct.pack('>I6', last) .. rest)
    write_meta()
    live(ARGV[1])
    return {'stored', count, life, 0, '1', 0, 0, 0, 0}
  end
end

-- include save
if not readable then return {'unreadable', newer} end
if mark > now and string.find(marked, ARGV[6], 1, true) then return {'doubtful'} end
return store(7)
