#!lua flags=allow-oom
-- buffers/claim       retry: never
-- KEYS  1 due         zset
-- ARGV  1 base        what the shard's keys start with
--       2 token       of the batch
--       3 lease       ms
--       4 most        messages in a batch
--       5 attempts    after so many a batch goes to the dead letters
--       6 worker      whom to wake when somebody becomes due
-- returns taken | nothing
-- taken: user, batch, fence, attempt, ms until the deadline, waiting, server ms, messages, pairs, attachments,
--        ms until the next look
-- nothing: ms until the next look (-1: nobody waits), idle workers

-- include take
base = ARGV[1]

local function ms_to_next()
  local head = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if not head[1] or head[1] == '!' then return -1 end
  return math.max(0, math.ceil(tonumber(head[2]) - now))
end

-- Most overdue first, by whole seconds, then the largest backlog: the fraction of the score.
local function pick()
  local found = call('ZRANGEBYSCORE', KEYS[1], '-inf', now + 0.9999, 'WITHSCORES', 'LIMIT', 0, 16)
  if #found == 0 then return nil end
  local best, second, least = found[1], nil, 2
  for i = 1, #found, 2 do
    local score = tonumber(found[i + 1])
    local whole = score - score % 1000
    second = second or whole
    if whole ~= second then break end
    if score % 1 < least then best, least = found[i], score % 1 end
  end
  return best
end

for _ = 1, 64 do
  member = pick()
  if not member then break end
  key = base .. 'u:' .. member
  local known = read(call('LINDEX', key, 0))
  if known and b == 0 then expire() end
  local at = next_look()
  if not known then
    call('ZREM', KEYS[1], member)
    count('vanished', 1)
  elseif at == 0 or at > now then
    finish(true)
  elseif b > 0 and attempt >= tonumber(ARGV[5]) then
    bury('its holders were lost')
    finish(true)
  elseif take(ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])) then
    return tell(ms_to_next())
  end
end
call('ZADD', base .. 'idle', now, ARGV[6])
call('PEXPIRE', base .. 'idle', 3600000)
return {'nothing', ms_to_next(), call('ZCARD', base .. 'idle')}
