#!lua
-- locks/acquire       retry: safe
-- KEYS  1 lock        hash
--       2 queue       zset
--       3 shard       zset
-- ARGV  1 token       repeating with the same token asks again, it never takes twice
--       2 weight      permits wanted
--       3 limit       permits there are
--       4 ttl         ms
--       5 lease       ms the place in the queue lasts unless asked for again; 0: do not wait
--       6 style       f fair | b barging
--       7 owner       free text
--       8 channels    prefix of the channels on which processes listen
-- returns granted | queued | busy
-- granted: fence, ms, number of expired holds ended, owner of the last of them
-- queued:  rank, ms until a hold ends
-- busy:    ms until a hold ends

-- include grant
local token, weight, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local hold, ticket = read(token)

local function take()
  count_in(weight, ttl, ttl)
  local fence = next_fence()
  write('h:' .. token, hold_text(now + ttl, weight, fence, now, ttl), 'o:' .. token, ARGV[7])
  return {'granted', fence, ttl, reaped, reaped_owner}
end

-- Nobody has it and nobody waits: the whole of most calls.
if used == 0 and not queue then
  limit = tonumber(ARGV[3])
  return take()
end

if hold then
  local deadline, w, fence, granted = parse_hold(hold)
  if deadline > now then
    -- A lost reply, or a hand-over whose signal was missed: the same grant, for its full time from here.
    longest = math.max(longest, ttl)
    if used == w then soonest = now + ttl end
    write('h:' .. token, hold_text(now + ttl, w, fence, granted, ttl))
    call('ZADD', K[3], now + longest, name())
    return {'granted', fence, ttl, 0, ''}
  end
end

-- include queue
reap()
limit = tonumber(ARGV[3])

-- Free and yet a queue: its holder expired, or the waiters are dead. Whoever comes first sees to the queue.
local barging, waiting = ARGV[6] == 'b', queue
if queue and not ticket and not barging and used < limit then
  waiting = not pump(ARGV[8], nil, false)
end
if used + weight <= limit and (barging or not waiting) then
  if ticket then drop_ticket(token) end
  return take()
end

local lease = tonumber(ARGV[5])
if lease == 0 then return {'busy', math.max(0, soonest - now)} end

queue = true
longest = math.max(longest, ttl, lease)
local place = string.format('%d %d %d %d %s', now + lease, weight, ttl, lease, ARGV[6])
if ticket then
  write('w:' .. token, place)
else
  call('ZADD', K[2], next_fence(), token)
  write('w:' .. token, place, 'o:' .. token, ARGV[7])
end
call('PEXPIRE', K[2], longest + GRACE)

if used < limit then
  pump(ARGV[8], token, false)
  hold = call('HGET', K[1], 'h:' .. token)
  if hold then
    local _, _, fence = parse_hold(hold)
    return {'granted', fence, ttl, reaped, reaped_owner}
  end
end
return {'queued', call('ZRANK', K[2], token), math.max(0, soonest - now)}
