#!lua flags=no-writes
-- fleet/processes     retry: safe
-- KEYS  1 alive       zset
-- ARGV  1 base        what the fleet's keys start with
--       2 count       at most
-- returns found
-- found: server ms, then for each process, those heard of last first: id, ms of its last report, ms of its first, record

-- include time
local answer = {'found', now}
local found = call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
for i = 1, #found, 2 do
  local fields = call('HMGET', ARGV[1] .. 'p:' .. found[i], 'since', 'record')
  if fields[2] then
    for _, part in ipairs({found[i], found[i + 1], fields[1], fields[2]}) do answer[#answer + 1] = part end
  end
end
return answer
