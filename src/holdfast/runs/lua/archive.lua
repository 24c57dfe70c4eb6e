#!lua flags=allow-oom
-- runs/archive        retry: safe
-- KEYS  1 arch        zset
--       2 held        zset
--       3 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 count       runs at most
--       3 pause       ms until what is handed out here comes again, unless it was stored
--       4.. runs      that were stored: they need not be listed any more
-- returns found
-- found: how many are left, how many were gone before they were stored, then the ids

-- include time
for i = 4, #ARGV do call('ZREM', KEYS[1], ARGV[i]) end
local gone, answer = 0, {'found', 0, 0}
for _, run in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])) do
  if call('EXISTS', ARGV[1] .. 'r:' .. run) == 1 then
    -- Out of the way of the others, and of whoever else stores runs.
    call('ZADD', KEYS[1], now + tonumber(ARGV[3]), run)
    answer[#answer + 1] = run
  else
    call('ZREM', KEYS[1], run)
    gone = gone + 1
  end
end
answer[2], answer[3] = call('ZCARD', KEYS[1]), gone
return answer
