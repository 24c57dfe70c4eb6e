#!lua
-- buffers/settle      retry: safe
-- KEYS  1 attachments hash
--       2 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
--       3 id          of the message, 10 bytes
--       4 name        of the attachment
--       5 outcome     r and its payload | f: failed
--       6 most        bytes of all attachments of the user
-- returns settled | late | missing | full
-- late: its deadline has passed, or its message was taken

-- include drop
key, member, base = KEYS[2], ARGV[1], ARGV[2]
local id, name = ARGV[3], ARGV[4]
local state, file = unpack(call('HMGET', KEYS[1], id, id .. name))
if not state or not file then return {'missing'} end
if file == ARGV[5] then return {'settled'} end
if state == 'taken' or string.sub(file, 1, 1) ~= 'p' or unpack_('>I6', file, 2) <= now then return {'late'} end
local open, latest, size = 0, 0, #ARGV[5]
local fields = call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do size = size + #fields[i + 1] end
if size > tonumber(ARGV[6]) then return {'full'} end
call('HSET', KEYS[1], id .. name, ARGV[5])
for i = 1, #fields, 2 do
  if fields[i] ~= id .. name and #fields[i] > 10 and string.sub(fields[i], 1, 10) == id and string.sub(fields[i + 1], 1, 1) == 'p' then
    open, latest = open + 1, math.max(latest, unpack_('>I6', fields[i + 1], 2))
  end
end
call('HSET', KEYS[1], id, string.format('%d %d', open, latest))
if read(call('LINDEX', key, 0)) then finish(false) end
return {'settled'}
