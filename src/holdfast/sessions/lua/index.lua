#!lua
-- sessions/index      retry: safe
-- KEYS  1 user        zset
-- ARGV  1 session
--       2 life        ms the index lives at least from now on
--       3 old         ms; what was not seen for so long may be gone
--       4 count       how many old ones to name
-- returns indexed
-- indexed: sessions that were not seen for long, each with when that was

-- include time
local fresh = call('EXISTS', KEYS[1]) == 0
call('ZADD', KEYS[1], now, ARGV[1])
if fresh then call('PEXPIRE', KEYS[1], ARGV[2]) else call('PEXPIRE', KEYS[1], ARGV[2], 'GT') end
return {'indexed',
  call('ZRANGEBYSCORE', KEYS[1], 0, now - tonumber(ARGV[3]), 'WITHSCORES', 'LIMIT', 0, ARGV[4])}
