#!lua
-- locks/guarded       retry: opid
-- KEYS  1 guard       hash
-- ARGV  1 fence
--       2 life        ms the guard remembers the highest fence
--       3 opid        repeating with the same id runs nothing again
--       4.. commands  for each: number of words, then the words
-- returns written | replayed | fenced
-- written: the commands' answers; fenced: highest fence seen

local g = redis.call('HMGET', KEYS[1], 'f', 'op')
local seen = tonumber(g[1]) or 0
if tonumber(ARGV[1]) < seen then return {'fenced', seen} end
if g[2] == ARGV[3] then return {'replayed'} end
redis.call('HSET', KEYS[1], 'f', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local answers, i = {'written'}, 4
while i <= #ARGV do
  local words = tonumber(ARGV[i])
  answers[#answers + 1] = redis.call(unpack(ARGV, i + 1, i + words)) or ''
  i = i + words + 1
end
redis.call('HSET', KEYS[1], 'op', ARGV[3])
return answers
