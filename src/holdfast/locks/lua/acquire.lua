#!lua
-- locks/acquire       retry: safe
-- KEYS  1 lock        hash
--       2 queue       zset
--       3 fence       string
--       4 index       zset
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

-- include lock
local token, weight, ttl, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
local hold, ticket = read(token)

if hold then
  local deadline, w, fence, granted = parse_hold(hold)
  if deadline > now then
    -- A lost reply, or a hand-over whose signal was missed: the same grant, for its full time from here.
    longest = math.max(longest, ttl)
    if used == w then soonest = now + ttl end
    redis.call('HSET', KEYS[1], 't', longest, 'm', int(soonest), 'h:' .. token,
      table.concat({int(now + ttl), w, fence, granted, ttl}, ' '))
    keep_keys()
    return {'granted', tonumber(fence), ttl, 0, ''}
  end
end

reap()
limit = tonumber(ARGV[3])
local waiting = redis.call('EXISTS', KEYS[2]) == 1

-- Free and yet a queue: its holder expired, or the waiters are dead. Whoever comes first sees to the queue.
local barging = ARGV[6] == 'b'
if waiting and not ticket and not barging and used < limit then
  waiting = not pump(ARGV[8], nil, false)
end

if used + weight <= limit and (barging or not waiting) then
  local fence = next_fence()
  if ticket then drop_ticket(token) end
  grant(token, weight, ttl, ttl, fence, ARGV[7])
  return {'granted', fence, ttl, reaped, reaped_owner}
end

local remaining = math.max(0, soonest - now)
if lease == 0 then return {'busy', remaining} end

if not ticket then
  redis.call('ZADD', KEYS[2], int(next_fence()), token)
  redis.call('HSET', KEYS[1], 'l', limit, 'o:' .. token, ARGV[7])
end
redis.call('HSET', KEYS[1], 'w:' .. token,
  table.concat({int(now + lease), weight, ttl, lease, ARGV[6]}, ' '))
longest = math.max(longest, ttl, lease)
redis.call('HSET', KEYS[1], 't', longest)
keep_keys()
redis.call('PEXPIRE', KEYS[2], longest + GRACE)

pump(ARGV[8], token, false)
hold = redis.call('HGET', KEYS[1], 'h:' .. token)
if hold then
  local _, _, fence = parse_hold(hold)
  return {'granted', tonumber(fence), ttl, reaped, reaped_owner}
end
return {'queued', redis.call('ZRANK', KEYS[2], token), math.max(0, soonest - now)}
