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
--        ms until the next look, messages removed for age, dead letters made
-- nothing: ms until the next look (-1: nobody waits), idle workers, 1 if the triggers are known here,
--          messages removed for age, dead letters made: user, batch, attempt, why

-- include take
base = ARGV[1]

local function ms_to_next()
  local head = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if not head[1] or head[1] == '!' then return -1 end
  return math.max(0, tonumber(head[2]) - now)
end

-- Most overdue first, by whole seconds; then the largest backlog.
local function pick()
  local found = call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, 8)
  if #found <= 2 then return found[1] end
  local best, most, second = found[1], -1, found[2] - found[2] % 1000
  for i = 1, #found, 2 do
    if found[i + 1] - found[i + 1] % 1000 ~= second then break end
    local meta = call('LINDEX', base .. 'u:' .. found[i], 0)
    local waiting = meta and unpack_('>I3', meta, 2) or 0
    if waiting > most then best, most = found[i], waiting end
  end
  return best
end

for _ = 1, 64 do
  member = pick()
  if not member then break end
  key = base .. 'u:' .. member
  local meta = call('LINDEX', key, 0)
  local newer = meta and string.byte(meta) ~= 1
  local known = read(not newer and meta)
  if known and b == 0 then expire() end
  local at = next_look()
  if newer then
    call('ZADD', KEYS[1], now + GRACE, member)
  elseif not known then
    call('ZREM', KEYS[1], member)
    rank('old', 0)
    rank('big', 0)
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
-- A worker that died stays at the end of the list: whoever looks removes it, by nobody listening for it.
for _ = 1, 100 do
  local eldest = call('ZRANGE', base .. 'idle', 0, 0)[1]
  local heard = call('PUBSUB', 'SHARDNUMSUB', base .. 'sig:' .. string.sub(eldest, 1, 16))[2]
  if eldest == ARGV[6] or heard > 0 then break end
  call('ZREM', base .. 'idle', eldest)
end
return {'nothing', ms_to_next(), call('ZCARD', base .. 'idle'), call('HEXISTS', base .. 'stat', 'conf_done'), aged, buried}
