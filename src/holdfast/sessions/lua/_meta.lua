-- The first item of a session says what is in it, so that a save need not read the entries:
--   version count tokens bytes last cut mark life [marked]
-- last: ms of the newest entry. cut: ms of the newest entry that was removed. life: id of the save that made the
-- session. marked: ids of saves that were repeated, whose first request may still come; until ms `mark`.
-- include time
-- include entry
local meta = call('LINDEX', KEYS[1], 0)
local count, tokens, bytes, last, cut, mark, life, marked = 0, 0, 0, 0, 0, 0, '', ''
local readable, newer = true, 0
if meta then
  local f = {string.match(meta, '^1 (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%x+) (%x*)$')}
  readable = f[8] ~= nil
  newer = (not readable and string.match(meta, '^[2-9] ')) and 1 or 0
  if readable then
    count, tokens, bytes = tonumber(f[1]), tonumber(f[2]), tonumber(f[3])
    last, cut, mark, life, marked = tonumber(f[4]), tonumber(f[5]), tonumber(f[6]), f[7], f[8]
  end
end
