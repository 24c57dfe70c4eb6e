#!lua
-- monitor/pump        retry: safe
-- KEYS  1 log         stream
--       2 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the monitor's keys start with
--       2 reader
--       3 token       of this process
--       4 from        where its changes began
--       5 to          the last of them: the next reader begins after it
--       6 version     of the subscribers that were asked
--       7.. each      subscriber and what it is to be told of: see below
-- returns settled | late
-- settled: how many were dropped because a subscriber has too many. late: another process has read on from there, or the
-- subscribers are others by now
-- each: who, list it is due in, ms to wait, ms between two messages, changes in one message, ms that telling it may take,
-- how many changes for it follow, then these

-- include time
-- include log
local now_at = call('HGET', base_key('cur'), ARGV[2])
local lock = base_key('p:' .. ARGV[2])
if call('GET', lock) == ARGV[3] then call('DEL', lock) end
if now_at == ARGV[5] and ARGV[4] ~= ARGV[5] then return {'settled', 0} end  -- the reply was lost
if known(call('GET', base_key('seq'))) < tonumber(ARGV[5]) then return {'late'} end  -- a failover has forgotten them
if now_at ~= ARGV[4] or (call('GET', base_key('subs')) or '0') ~= ARGV[6] then return {'late'} end

local function shorten(who)
  local queue, telling = base_key('q:' .. who), known(call('HGET', base_key('d:' .. who), 'count'))
  local extra = call('LLEN', queue) - QUEUE_MOST
  if extra <= 0 then return 0 end
  -- What is being told stays in front.
  local front = telling > 0 and call('LRANGE', queue, 0, telling - 1) or {}
  call('LTRIM', queue, telling + extra, -1)
  for i = #front, 1, -1 do call('LPUSH', queue, front[i]) end
  return extra
end

local at, dropped, news, made = 7, 0, false, {}
while at <= #ARGV do
  local who, list, wait, pause = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local most, lease, count = ARGV[at + 4], ARGV[at + 5], tonumber(ARGV[at + 6])
  local state, queue = base_key('d:' .. who), base_key('q:' .. who)
  local bad, told, before = unpack(call('HMGET', state, 'bad', 'told', 'list'))
  if before and before ~= list then call('ZREM', base_key(before), who) end
  local size = call('LLEN', queue)
  if size > NUMBERS and string.sub(call('LINDEX', queue, 0), 1, 1) ~= '!' then make_whole(who) end
  local items = {}
  for i = at + 7, at + 6 + count do
    local item = ARGV[i]
    if wait > 0 or pause > 0 or known(bad) > 0 or size > NUMBERS then
      -- It will wait, perhaps for longer than the log keeps the change: it gets it whole.
      if made[item] == nil then
        local change = change_of(item)
        made[item] = change and whole(change[1], change[2]) or item
      end
      item = made[item]
    end
    if string.sub(item, 1, 1) ~= '!' then call('ZADD', base_key('heads'), 'NX', item, who) end
    items[#items + 1] = item
  end
  call('RPUSH', queue, unpack(items))
  dropped = dropped + shorten(who)
  call('HSET', state, 'most', most, 'list', list, 'lease', lease)
  call('PEXPIRE', queue, KEEP)
  call('PEXPIRE', state, KEEP)
  local where = base_key((list == 'due' and known(bad) > 0) and 'slow' or list)
  -- Who is due already stays where it is: it may be told at this moment, or wait for its next try.
  news = call('ZADD', where, 'NX', math.max(now + wait, known(told) + pause), who) == 1 or news
  call('PEXPIRE', where, KEEP)
  at = at + 7 + count
end
call('HSET', base_key('cur'), ARGV[2], ARGV[5])
keep('cur')
keep('heads')
if news then call('SPUBLISH', base_key('ch'), '2') end
return {'settled', dropped}
