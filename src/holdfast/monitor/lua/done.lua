#!lua flags=allow-oom
-- monitor/done        retry: safe
-- KEYS  1 none        string never there: a slot that is moving is not used
--       2 slow        zset
-- ARGV  1 base        what the monitor's keys start with
--       2 who         the subscriber
--       3 token
--       4 outcome     told, again (it failed), dead (it failed for good), later (it was not tried) or back (it is not known)
--       5 wait        ms until the next message, or the next try
--       6 error       why it is dead
--       7 letters     dead letters at most
-- returns settled | not_held
-- settled: how many dead letters had to go

-- include time
-- include log
local who, outcome = ARGV[2], ARGV[4]
local state, queue = base_key('d:' .. who), base_key('q:' .. who)
local token, ended, count, attempt, list, failed, bad =
  unpack(call('HMGET', state, 'token', 'ended', 'count', 'attempt', 'list', 'failed', 'bad'))
if ended == ARGV[3] then return {'settled', 0} end
if token ~= ARGV[3] then return {'not_held'} end
local gone = 0

local function bury()
  local entry = {}
  for _, item in ipairs(call('LRANGE', queue, 0, known(count) - 1)) do
    local change = change_of(item)
    if change then
      entry[#entry + 1] = 'c'
      entry[#entry + 1] = whole(change[1], change[2])
    end
  end
  if #entry == 0 then return end
  call('XADD', base_key('dead'), '*', 'who', who, 'error', ARGV[6], 'attempts', attempt,
    'list', list or 'due', unpack(entry))
  gone = call('XTRIM', base_key('dead'), 'MAXLEN', '=', ARGV[7])
  keep('dead')
end

call('HSET', state, 'token', '', 'ended', ARGV[3])
if outcome == 'later' then call('HSET', state, 'attempt', math.max(0, known(attempt) - 1)) end
if outcome == 'again' then
  call('HSET', state, 'failed', known(failed) + 1, 'bad', known(bad) + 1)
elseif outcome ~= 'back' and (outcome ~= 'later' or known(failed) + known(attempt) <= 1) then
  -- What was never tried is put together anew: more may have come.
  if outcome == 'dead' then bury() end
  if outcome ~= 'later' then call('LTRIM', queue, known(count), -1) end
  call('HSET', state, 'count', 0, 'attempt', 0, 'failed', 0)
  if outcome == 'told' then call('HSET', state, 'bad', 0, 'told', now) end
  if outcome == 'dead' then call('HSET', state, 'bad', known(bad) + 1, 'told', now) end
end
bad = known(call('HGET', state, 'bad'))
list = list or 'due'
call('ZREM', base_key(list), who)
call('ZREM', KEYS[2], who)
local head = call('LINDEX', queue, 0)
if not head then
  call('ZREM', base_key('heads'), who)
elseif string.sub(head, 1, 1) ~= '!' then
  call('ZADD', base_key('heads'), head, who)
  keep('heads')
end
if head then
  local where = (list == 'due' and bad > 0) and KEYS[2] or base_key(list)
  call('ZADD', where, now + ARGV[5], who)
  call('PEXPIRE', where, KEEP)
  call('PEXPIRE', queue, KEEP)
end
call('PEXPIRE', state, KEEP)
return {'settled', gone}
