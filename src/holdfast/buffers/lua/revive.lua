#!lua flags=allow-oom
-- buffers/revive      retry: safe
-- KEYS  1 dead        zset
-- ARGV  1 base        what the shard's keys start with
--       2 batch
--       3 how         r put back, to be taken as the same batch | p purge
-- returns revived | purged | busy | missing
-- revived, purged: messages; busy: the user has a batch in flight

-- include drop
base = ARGV[1]
local letter = base .. 'x:' .. ARGV[2]
local parts = call('LRANGE', letter, 0, -1)
if #parts == 0 then return {'missing'} end
local _, at, messages, talk, files = unpack_('>I1I6I3I3I3I2', parts[1])
member = parts[2]
if ARGV[3] == 'p' then
  call('DEL', letter)
  call('ZREM', KEYS[1], ARGV[2])
  count('purged', messages)
  return {'purged', messages}
end
key = base .. 'u:' .. member
local known = read(call('LINDEX', key, 0))
if b > 0 then return {'busy'} end
if known then
  call('LPOP', key)
else
  local conf = call('HGET', base .. 'stat', 'conf')
  if conf then
    local t, a, q = string.match(conf, '^(%d+) (%d+) (%d+)$')
    thr, age, quiet = tonumber(t), tonumber(a), tonumber(q)
  end
  ttl, again = 86400000, math.max(0, now + call('PTTL', base .. 'r:' .. member))
end
popped = true
for i = 3 + messages, 4, -1 do call('LPUSH', key, parts[i]) end
for i = 3 + messages + talk, 4 + messages, -1 do call('LPUSH', base .. 'c:' .. member, parts[i]) end
for i = 4 + messages + talk, #parts, 2 do call('HSET', base .. 'a:' .. member, parts[i], parts[i + 1]) end
b, bc, attempt, batch, token, deadline, span = messages, talk, 0, tonumber(ARGV[2]), '', now, 0
for i = 4, 3 + messages do nf = nf + string.byte(parts[i], 17) end
call('DEL', letter)
call('ZREM', KEYS[1], ARGV[2])
count('replayed', messages)
finish(false)
if talk > 0 and call('PTTL', base .. 'c:' .. member) == -1 then call('PEXPIRE', base .. 'c:' .. member, life()) end
return {'revived', messages}
