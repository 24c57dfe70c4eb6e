-- include letter
key, member, base = KEYS[2], ARGV[1], ARGV[2]
read(call('LINDEX', key, 0))
local list, kept, mark = KEYS[1], tonumber(ARGV[4]), base .. 'r:' .. member
if repeated then call('SET', mark, '', 'PX', REMEMBER) end
if repeated or call('EXISTS', mark) == 1 then
  local found = was_op(ARGV[6])
  for _, pair in ipairs(call('LRANGE', list, 0, -1)) do
    if string.sub(pair, 12, 19) == ARGV[6] then found = true end
  end
  if found then return {'replayed', call('LLEN', list) - bc} end
end
local before = call('LLEN', list)
local stale = before - prune_talk()
local head = pack_('>I6I5', now, kept) .. ARGV[6]
for i = 7, #ARGV do call('RPUSH', list, head .. ARGV[i]) end
local over = math.max(0, call('LLEN', list) - bc - tonumber(ARGV[3]))
if over > 0 then
  local away, back = call('LPOP', list, bc + over), {}
  for i = bc, 1, -1 do back[#back + 1] = away[i] end
  if bc > 0 then call('LPUSH', list, unpack(back)) end
  count('dropped.pair_capacity', over)
end
call('PEXPIRE', list, math.max(kept + tonumber(ARGV[5]) + GRACE, b > 0 and life() or 0))
return {'stored', call('LLEN', list) - bc, stale, over}
