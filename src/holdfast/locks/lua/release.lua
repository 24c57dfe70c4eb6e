#!lua flags=allow-oom
-- locks/release       retry: safe
-- KEYS  1 lock        hash
--       2 queue       zset
--       3 fence       string
--       4 index       zset
-- ARGV  1 token       its hold and its place in the queue both go
--       2 channels    prefix of the channels on which processes listen
-- returns released | withdrawn | expired | not_held
-- released: the next live waiters were granted in the same step

-- include lock
local token = ARGV[1]
local hold, ticket = read(token)
local status = 'not_held'

if ticket then
  drop_ticket(token)
  status = 'withdrawn'
end
if hold then
  local deadline, weight = parse_hold(hold)
  status = deadline > now and 'released' or 'expired'
  if used == weight and redis.call('EXISTS', KEYS[2]) == 0 then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[4], name())
    return {status}
  end
  drop_hold(token, weight)
end
if status ~= 'not_held' then
  reap()
  settle(ARGV[2])
end
return {status}
