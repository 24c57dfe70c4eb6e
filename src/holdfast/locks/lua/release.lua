#!lua flags=allow-oom
-- locks/release       retry: safe
-- KEYS  1 lock        hash
--       2 queue       zset
--       3 shard       zset
-- ARGV  1 token       its hold and its place in the queue both go
--       2 channels    prefix of the channels on which processes listen
-- returns released | withdrawn | expired | not_held
-- released: the next live waiters were granted in the same step

-- include lock
local token = ARGV[1]
local hold, ticket = read(token)
if not hold and not ticket then return {'not_held'} end

local status, weight = 'withdrawn', 0
if hold then
  local deadline
  deadline, weight = parse_hold(hold)
  status = deadline > now and 'released' or 'expired'
  if used == weight and not queue then
    call('DEL', K[1])
    call('ZREM', K[3], name())
    return {status}
  end
end

-- include queue
if ticket then drop_ticket(token) end
if hold then
  -- Its fields go with the next write; so `reap` must not see it again.
  used = math.max(0, used - weight)
  if used > 0 then
    drop_hold(token, 0)
    hold = nil
  end
end
reap()
settle(ARGV[2], hold and token)
return {status}
