#!lua flags=allow-oom
-- sessions/unindex    retry: safe
-- KEYS  1 user        zset
-- ARGV  1 grace       ms; what was indexed since stays, for its save may still be on the way
--       2.. pairs     session, and when it was last seen
-- returns removed
-- removed: the sessions that are left, each with when it was last seen

-- include time
for at = 2, #ARGV, 2 do
  local seen = tonumber(call('ZSCORE', KEYS[1], ARGV[at]))
  if seen == tonumber(ARGV[at + 1]) and seen <= now - tonumber(ARGV[1]) then call('ZREM', KEYS[1], ARGV[at]) end
end
return {'removed', call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')}
