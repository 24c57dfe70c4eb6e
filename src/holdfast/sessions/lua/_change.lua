-- include meta
local function write_meta()
  if mark <= now then marked = '' end
  call('LSET', KEYS[1], 0,
    string.format('1 %d %d %d %d %d %d ', count, tokens, bytes, last, cut, mark) .. life .. ' ' .. marked)
end
local function uncount(entry)
  count, bytes, tokens = math.max(0, count - 1), math.max(0, bytes - #entry), math.max(0, tokens - tokens_of(entry))
  cut = math.max(cut, ms_of(entry))
end
local function live(ttl)
  -- Never shorter. GT takes a key without an end for one that lives for ever, so a new one is told apart.
  if call('PEXPIRE', KEYS[1], ttl, 'GT') == 0 and call('PTTL', KEYS[1]) == -1 then
    call('PEXPIRE', KEYS[1], ttl)
  end
end
