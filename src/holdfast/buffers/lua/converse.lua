#!lua
-- buffers/converse    retry: opid
-- KEYS  1 pairs       list
--       2 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
--       3 capacity    pairs that may wait
--       4 life        ms
--       5 ttl         ms that messages live
--       6 opid        8 random bytes
--       7.. pairs     payloads
-- returns stored | replayed
-- stored: pairs waiting; dropped for age, for capacity

-- include letter
key, member, base = KEYS[2], ARGV[1], ARGV[2]
read(call('LINDEX', key, 0))
local list, life = KEYS[1], tonumber(ARGV[4])
for _, pair in ipairs(call('LRANGE', list, 0, -1)) do
  if string.sub(pair, 12, 19) == ARGV[6] then return {'replayed', call('LLEN', list) - bc} end
end
local before = call('LLEN', list)
local aged = before - prune_talk()
local head = pack_('>I6I5', now, life) .. ARGV[6]
for i = 7, #ARGV do call('RPUSH', list, head .. ARGV[i]) end
local over = math.max(0, call('LLEN', list) - bc - tonumber(ARGV[3]))
if over > 0 then
  local away, back = call('LPOP', list, bc + over), {}
  for i = bc, 1, -1 do back[#back + 1] = away[i] end
  if bc > 0 then call('LPUSH', list, unpack(back)) end
  count('dropped.pair_capacity', over)
end
call('PEXPIRE', list, life + tonumber(ARGV[5]) + GRACE)
return {'stored', call('LLEN', list) - bc, aged, over}
