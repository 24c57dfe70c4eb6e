#!lua flags=no-writes
-- sessions/get        retry: safe
-- KEYS  1 session     list
-- ARGV  1 id          10 bytes
-- returns found | missing
-- found: the entry

for _, entry in ipairs(redis.call('LRANGE', KEYS[1], 1, -1)) do
  if string.byte(entry, 1) == 1 and string.sub(entry, 2, 11) == ARGV[1] then return {'found', entry} end
end
return {'missing'}
