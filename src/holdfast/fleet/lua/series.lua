#!lua flags=no-writes
-- fleet/series        retry: safe
-- KEYS  1 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the fleet's keys start with
--       2 kind        s: slots of ten seconds, m: of five minutes
--       3 count       slots, the last of which is the one of now
-- returns found
-- found: server ms, number of the last slot, then for each slot, oldest first: its fields and their values

-- include time
local step = ARGV[2] == 's' and 10000 or 300000
local last = (now - now % step) / step
local answer = {'found', now, last}
for i = last - tonumber(ARGV[3]) + 1, last do
  answer[#answer + 1] = call('HGETALL', ARGV[1] .. string.format('%s:%d', ARGV[2], i))
end
return answer
