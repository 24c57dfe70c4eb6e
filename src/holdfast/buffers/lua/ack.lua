#!lua flags=allow-oom
-- buffers/ack         retry: safe
-- KEYS  1 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
--       3 token
--       4 fence
--       5.. ids       only these messages; none: all
-- returns acked | not_held
-- acked: messages removed, messages of the batch that are left; 0 and 0 if it was acknowledged before

-- include drop
key, member, base = KEYS[1], ARGV[1], ARGV[2]
local mine = tonumber(ARGV[4])
local known = read(call('LINDEX', key, 0))
if not known or b == 0 or fence ~= mine or token ~= ARGV[3] or deadline <= now then
  if was_acked(mine) then return {'acked', 0, 0} end
  return {'not_held'}
end

local away = call('LPOP', key, 1 + b)
popped = true
local wanted, removed, left, files = {}, {}, {}, false
for i = 5, #ARGV do wanted[ARGV[i]] = true end
for i = #away, 2, -1 do
  local entry = away[i]
  if #ARGV < 5 or wanted[string.sub(entry, 1, 10)] then
    removed[#removed + 1] = entry
    if string.byte(entry, 17) == 1 then files = true end
  else
    left[#left + 1] = entry
  end
end
if files then
  local ids = {}
  for _, entry in ipairs(removed) do ids[string.sub(entry, 1, 10)] = true end
  detach(ids)
end
if #left == 0 then nf = 0 else for _, entry in ipairs(removed) do nf = nf - string.byte(entry, 17) end end
if #removed > 0 then count('absorbed', #removed) end
if #left > 0 then
  b = #left
  call('LPUSH', key, unpack(left))
  if #removed > 0 then remember(removed, 0) end
else
  count('batches', 1)
  remember(removed, mine)
  if bc > 0 then remember_talk(call('LPOP', base .. 'c:' .. member, bc) or {}) end
  b, bc = 0, 0
end
finish(false)
return {'acked', #removed, #left}
