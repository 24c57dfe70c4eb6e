#!lua flags=allow-oom
-- buffers/pop         retry: never
-- KEYS  1 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
--       3 most        messages
-- returns popped
-- popped: server ms, messages, attachments, messages removed for age; they are gone from here, whoever gets this answer or nobody

-- include drop
key, member, base = KEYS[1], ARGV[1], ARGV[2]
if not read(call('LINDEX', key, 0)) then return {'popped', now, {}, {}, 0} end
expire()
local k = ready(tonumber(ARGV[3]))
local files = np > 0 and call('HGETALL', base .. 'a:' .. member) or {}
local out = k > 0 and cut(k) or {}
if k > 0 then
  count('popped', k)
  remember(out, 0)
end
finish(false)
return {'popped', now, out, files, aged}
