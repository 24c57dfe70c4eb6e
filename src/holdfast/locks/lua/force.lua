#!lua flags=allow-oom
-- locks/force         retry: opid
-- KEYS  1 lock        hash
--       2 queue       zset
--       3 shard       zset
--       4 audit       stream
-- ARGV  1 fence       end the hold with this fence only; 0: every hold
--       2 reason      free text
--       3 by          who asked, free text
--       4 opid        repeating with the same id ends nothing more
--       5 channels    prefix of the channels on which processes listen
-- returns forced | replayed | not_held
-- forced, replayed: number of holds ended

-- include queue
local AUDIT_LENGTH, AUDIT_LIFE = 1000, 2592000000
for _, entry in ipairs(call('XREVRANGE', K[4], '+', '-', 'COUNT', 20)) do
  local f = entry[2]
  for i = 1, #f, 2 do
    if f[i] == 'op' and f[i + 1] == ARGV[4] then return {'replayed', tonumber(f[2])} end
  end
end

read('')
local ended, fences, owners = 0, {}, {}
local fields = call('HGETALL', K[1])
for i = 1, #fields, 2 do
  if string.sub(fields[i], 1, 2) == 'h:' then
    local token = string.sub(fields[i], 3)
    local _, weight, fence = parse_hold(fields[i + 1])
    if ARGV[1] == '0' or tonumber(ARGV[1]) == fence then
      ended = ended + 1
      fences[ended], owners[ended] = string.format('%d', fence), call('HGET', K[1], 'o:' .. token) or ''
      drop_hold(token, weight)
      tell(ARGV[5], token, 'lost ' .. token .. ' forced')
    end
  end
end
if ended == 0 then return {'not_held'} end
call('XADD', K[4], 'MAXLEN', '~', AUDIT_LENGTH, '*', 'ended', ended, 'lock', name(), 'op', ARGV[4],
  'reason', ARGV[2], 'by', ARGV[3], 'fences', table.concat(fences, ' '), 'owners', table.concat(owners, '\n'))
call('PEXPIRE', K[4], AUDIT_LIFE)
settle(ARGV[5])
return {'forced', ended}
