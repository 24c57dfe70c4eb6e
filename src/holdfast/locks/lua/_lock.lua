-- include time
-- One lock is a number of permits: a mutex has 1, a semaphore n, a read/write lock a million of which a reader
-- takes 1 and a writer all. Every kind therefore has the same hash, the same queue and the same scripts.
--
-- K[1] hash      s         "used limit soonest longest queue": permits in use and in all, no hold ends before
--                          `soonest`, longest ttl of a hold, 1 if somebody may be waiting
--                h:<token> hold "deadline weight fence granted ttl"
--                w:<token> waiter "deadline weight ttl lease style"
--                o:<token> owner, free text
-- K[2] zset      waiting tokens by arrival
-- K[3] zset      of the shard: locks in use by the time they end at the latest, and `!` with the last fence
--
-- A hold is judged by its deadline, not by the life of the key: the key stays GRACE longer, so that whoever takes
-- an expired lease over can be told whose it was.
--
-- Includes are cut so that a call which finds nobody else there defines few functions: each costs time on every call.
local K = KEYS
local used, limit, soonest, longest, queue

local function read(token)
  local f = call('HMGET', K[1], 's', 'h:' .. token, 'w:' .. token)
  if f[1] then
    local u, l, s, t, q = string.match(f[1], '^(%d+) (%d+) (%d+) (%d+) (%d)$')
    used, limit, soonest, longest, queue = tonumber(u), tonumber(l), tonumber(s), tonumber(t), q == '1'
  else
    used, limit, soonest, longest, queue = 0, 1, 0, 0, false
  end
  return f[2], f[3]
end

local function parse_hold(text)
  local deadline, weight, fence, granted, ttl = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return tonumber(deadline), tonumber(weight), tonumber(fence), tonumber(granted), tonumber(ttl)
end

-- The part of the key after the hash tag: kind and id.
local function name()
  return string.sub(K[1], string.find(K[1], '}', 1, true) + 2)
end
