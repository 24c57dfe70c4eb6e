#!lua flags=allow-oom
-- buffers/quarantine  retry: safe
-- KEYS  1 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
--       3 token
--       4 batch
--       5 error       free text
--       6.. ids       messages of the batch that cannot be read: they become a dead letter, the others stay
-- returns buried | not_held
-- buried: messages of the batch that are left

-- include letter
key, member, base = KEYS[1], ARGV[1], ARGV[2]
local known = read(call('LINDEX', key, 0))
if not known or b == 0 or batch ~= tonumber(ARGV[4]) or token ~= ARGV[3] or deadline <= now then return {'not_held'} end
local away = call('LPOP', key, 1 + b)
popped = true
local wanted, bad, left = {}, {}, {}
for i = 6, #ARGV do wanted[ARGV[i]] = true end
for i = #away, 2, -1 do
  local list = wanted[string.sub(away[i], 1, 10)] and bad or left
  list[#list + 1] = away[i]
end
local number = next_fence()
if #bad > 0 then letter(string.format('%d', number), bad, {}, ARGV[5]) end
b = #left
for _, entry in ipairs(bad) do nf = nf - string.byte(entry, 17) end
if b > 0 then
  call('LPUSH', key, unpack(left))
elseif bc > 0 then
  -- The pairs explain messages that nobody can read; they wait for the next ones.
  bc = 0
end
call('ZADD', base .. 'due', number, '!')
finish(false)
return {'buried', b}
