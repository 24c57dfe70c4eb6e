#!lua
-- buffers/configure   retry: safe
-- KEYS  1 stat        hash
--       2 due         zset
-- ARGV  1 base        what the shard's keys start with
--       2 triggers    "threshold max-age-ms quiet-ms"
--       3 cursor      0, then what the last call answered
--       4 count       users to look at in this call, about
-- returns same | changed
-- changed: cursor of the next call (0: done), triggers before; records that were made under others are brought up to date

-- include drop
base = ARGV[1]

-- A record of a newer version is a newer worker's.
local function known()
  local meta = call('LINDEX', key, 0)
  return meta and string.byte(meta) == 1 and read(meta)
end

local conf, done = unpack(call('HMGET', KEYS[1], 'conf', 'conf_done'))
call('PEXPIRE', KEYS[1], 2592000000)
if conf == ARGV[2] and done == ARGV[2] then return {'same'} end
call('HSET', KEYS[1], 'conf', ARGV[2])
call('PEXPIRE', KEYS[1], 2592000000)
local t, a, q = string.match(ARGV[2], '^(%d+) (%d+) (%d+)$')
local slice = call('ZSCAN', KEYS[2], ARGV[3], 'COUNT', ARGV[4])
for i = 1, #slice[2], 2 do
  member = slice[2][i]
  key = base .. 'u:' .. member
  if member ~= '!' and known() then
    thr, age, quiet = tonumber(t), tonumber(a), tonumber(q)
    finish(true)
  end
end
if slice[1] == '0' then call('HSET', KEYS[1], 'conf_done', ARGV[2]) end
return {'changed', tonumber(slice[1]), conf or ''}
