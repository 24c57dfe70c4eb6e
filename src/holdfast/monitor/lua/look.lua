#!lua flags=no-writes
-- monitor/look        retry: safe
-- KEYS  1.. things    string
-- returns found
-- found: for each thing when it was observed, in microseconds, and its state; nothing and nothing if it is not known

-- include told
local answer = {'found'}
for i = 1, #KEYS do
  local text = redis.call('GET', KEYS[i])
  local thing = text and parse_told(text)
  answer[#answer + 1] = thing and string.format('%d', thing.observed) or ''
  answer[#answer + 1] = thing and thing.state or ''
end
return answer
