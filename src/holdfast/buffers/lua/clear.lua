#!lua flags=allow-oom
-- buffers/clear       retry: safe
-- KEYS  1 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
--       3 how         w what waits | a every trace: batch in flight, pairs, attachments, dead letters too
-- returns cleared
-- cleared: messages removed, fence: higher than any given out for this user

-- include letter
key, member, base = KEYS[1], ARGV[1], ARGV[2]
local known, removed = read(call('LINDEX', key, 0)), 0
if ARGV[3] == 'w' then
  if known and n > 0 then
    expire()
    removed = n
    if removed > 0 then
      remember(cut(n), 0)
      count('cleared', removed)
    end
    force = 0
    finish(false)
  end
  local talk = call('LLEN', base .. 'c:' .. member) - bc
  if talk > 0 then call('RPOP', base .. 'c:' .. member, talk) end
  return {'cleared', removed, 0}
end

fence = next_fence()
call('ZADD', base .. 'due', fence, '!')
if call('PTTL', base .. 'due') < 302400000 then prolong(604800000) end
removed = n + b
if b > 0 and token ~= '' and deadline > now then
  call('SPUBLISH', base .. 'sig:' .. string.sub(token, 1, 16), 'lost ' .. token .. ' forgotten')
end
call('DEL', key, base .. 'c:' .. member, base .. 'a:' .. member, base .. 'g:' .. member, base .. 'r:' .. member)
call('ZREM', base .. 'due', member)
rank('old', 0)
rank('big', 0)
for _, name in ipairs(call('ZRANGE', base .. 'dead', 0, -1)) do
  if call('LINDEX', base .. 'x:' .. name, 1) == member then
    removed = removed + unpack_('>I3', call('LINDEX', base .. 'x:' .. name, 0), 8)
    call('DEL', base .. 'x:' .. name)
    call('ZREM', base .. 'dead', name)
  end
end
if removed > 0 then count('forgotten', removed) end
return {'cleared', removed, fence}
