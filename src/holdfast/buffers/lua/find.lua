#!lua flags=allow-oom
-- buffers/find        retry: safe
-- KEYS  1 due         zset
-- ARGV  1 base        what the shard's keys start with
--       2 token       of a claim whose reply was lost
--       3 lease       ms
-- returns taken | nothing
-- taken: user, batch, fence, attempt, ms until the deadline, waiting, server ms, messages, pairs, attachments,
--        ms until the next look, messages removed for age, dead letters made
-- nothing: the claim took nothing, or was not executed yet; what it may still take comes free after its lease

-- include take
base = ARGV[1]

-- A record of a newer version is a newer worker's.
local function known()
  local meta = call('LINDEX', key, 0)
  return meta and string.byte(meta) == 1 and read(meta)
end

local lease = tonumber(ARGV[3])
for _, user in ipairs(call('ZRANGEBYSCORE', KEYS[1], now, now + lease, 'LIMIT', 0, 5000)) do
  member, key = user, base .. 'u:' .. user
  if known() and b > 0 and token == ARGV[2] and deadline > now then
    deadline, span = now + lease, lease
    finish(true)
    return tell(0)
  end
end
return {'nothing'}
