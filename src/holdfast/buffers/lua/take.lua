#!lua flags=allow-oom
-- buffers/take        retry: safe
-- KEYS  1 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
--       3 token       repeating with the same token answers the same batch
--       4 lease       ms
--       5 most        messages in a batch
--       6 attempts    after so many a batch goes to the dead letters
-- returns taken | busy | empty
-- taken: user, batch, fence, attempt, ms until the deadline, waiting, server ms, messages, pairs, attachments,
--        0, messages removed for age, dead letters made
-- busy: ms until somebody may take it; empty: messages removed for age, dead letters made

-- include take
key, member, base = KEYS[1], ARGV[1], ARGV[2]
if not read(call('LINDEX', key, 0)) then return {'empty', 0, {}} end
local lease = tonumber(ARGV[4])
if b > 0 then
  if deadline > now and deadline - now <= span then
    if token ~= ARGV[3] then return {'busy', deadline - now} end
    deadline, span = now + lease, lease
    finish(true)
    return tell(0)
  end
  if attempt >= tonumber(ARGV[6]) then bury('its holders were lost') end
end
if not take(ARGV[3], lease, tonumber(ARGV[5])) then return {'empty', aged, buried} end
return tell(0)
