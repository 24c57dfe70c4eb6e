#!lua flags=allow-oom
-- once/untell         retry: safe
-- KEYS  1.. pairs     string what is known of a thing, and when its shard must look at which; a pair for each
-- ARGV  1 op          what this operation judged counts as not told: nobody heard its answer
--       2 trailing    1: it is told as soon as somebody looks; 0: when it is judged again
--       3.. names     in the index
-- returns settled

-- include time
-- include told
for i = 1, #KEYS, 2 do
  local text = call('GET', KEYS[i])
  local thing = text and parse_told(text)
  if thing and thing.op == ARGV[1] and REASON[thing.why] == 'first' then
    call('DEL', KEYS[i])
  elseif thing then
    -- Others may have moved it on since.
    local removed
    for at = #thing.when, 1, -1 do
      if thing.when[at][3] == ARGV[1] then removed = table.remove(thing.when, at)[1] end
    end
    if removed then
      if thing.told == removed then thing.told = UNTOLD end
      if thing.op == ARGV[1] then thing.op = string.rep('\0', 8) end
      call('SET', KEYS[i], told_text(thing), 'KEEPTTL')
      if ARGV[2] == '1' then
        call('ZADD', KEYS[i + 1], now, ARGV[2 + (i + 1) / 2])
        call('PEXPIRE', KEYS[i + 1], call('PTTL', KEYS[i]))
      end
    end
  end
end
return {'settled'}
