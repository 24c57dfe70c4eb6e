#!lua
-- locks/guarded       retry: opid
-- KEYS  1 guard       hash
-- ARGV  1 fence
--       2 life        ms the guard remembers the highest fence
--       3 opid        repeating with the same id runs nothing again
--       4.. commands  for each: number of words, then the words
-- returns written | replayed | fenced | failed
-- written: the commands' answers; fenced: highest fence seen; failed: number and error of the command that failed

-- The last operations: + and the id of one that was done, - of one that failed.
local OPS = 32 * 18
local g = redis.call('HMGET', KEYS[1], 'f', 'ops')
local seen, ops = tonumber(g[1]) or 0, g[2] or ''
if string.find(ops, '+' .. ARGV[3], 1, true) then return {'replayed'} end
if string.find(ops, '-' .. ARGV[3], 1, true) then return {'failed', 0, 'its error was lost with the first reply'} end
if tonumber(ARGV[1]) < seen then return {'fenced', seen} end
local function remember(outcome)
  redis.call('HSET', KEYS[1], 'f', ARGV[1], 'ops', string.sub(outcome .. ARGV[3] .. ' ' .. ops, 1, OPS))
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local answers, i, number = {'written'}, 4, 1
while i <= #ARGV do
  local words = tonumber(ARGV[i])
  local answer = redis.pcall(unpack(ARGV, i + 1, i + words))
  if type(answer) == 'table' and answer.err then
    remember('-')
    return {'failed', number, answer.err}
  end
  answers[#answers + 1] = answer or ''
  i, number = i + words + 1, number + 1
end
remember('+')
return answers
