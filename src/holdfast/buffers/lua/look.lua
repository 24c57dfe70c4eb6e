#!lua flags=no-writes
-- buffers/look        retry: safe
-- KEYS  1 user        list
--       2 pairs       list
-- ARGV  1 most        messages to answer; 0: none
-- returns found
-- found: server ms, waiting, bytes, ms since the oldest, in flight, attempt, ms until the batch in flight may be taken,
--        fence, held by somebody, pairs, messages

-- include record
key = KEYS[1]
read(call('LINDEX', key, 0))
local entries, most, gone, size = {}, tonumber(ARGV[1]), 0, 0
-- What is past its life is not shown, although only a script that may write can remove it.
if n > 0 and oldest + ttl <= now then
  for _, entry in ipairs(call('LRANGE', key, b + 1, -1)) do
    local at = unpack_('>I6', entry, 11)
    if at + ttl > now then
      oldest = at
      break
    end
    gone, size = gone + 1, size + #entry
  end
end
if most > 0 and n > gone then entries = call('LRANGE', key, b + 1 + gone, b + gone + math.min(most, n - gone)) end
return {'found', now, n - gone, bytes - size, n > gone and math.max(0, now - oldest) or -1, b, attempt,
  b > 0 and math.max(0, deadline - now) or 0, fence, b > 0 and token ~= '' and deadline > now and deadline - now <= span and 1 or 0,
  call('LLEN', KEYS[2]), entries}
