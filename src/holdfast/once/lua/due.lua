#!lua flags=allow-oom
-- once/due            retry: safe
-- KEYS  1 none        string never there: a slot that is moving is not used
--       2.. due       zset
-- ARGV  1 count       things at most
--       2 lease       ms until what is handed out here comes again, unless it was told
--       3 keep        ms for which a thing is remembered
--       4.. things    what the keys of things start with, for each shard
-- returns found
-- found: ms until the next is due (-1: none), then for each thing its shard's number, name, digest, state and the one before

-- include time
-- include told
local left, soonest, answer = tonumber(ARGV[1]), -1, {'found', -1}
for i = 2, #KEYS do
  if left > 0 then
    for _, name in ipairs(call('ZRANGEBYSCORE', KEYS[i], '-inf', now, 'LIMIT', 0, left)) do
      local text = call('GET', ARGV[i + 2] .. name)
      local thing = text and parse_told(text)
      if thing and thing.now ~= thing.told then
        call('ZADD', KEYS[i], now + ARGV[2], name)
        call('PEXPIRE', KEYS[i], math.max(tonumber(ARGV[3]), 2 * ARGV[2]))
        if thing.told ~= UNKNOWN then
          thing.told = UNKNOWN  -- from here on it may be told, or not
          call('SET', ARGV[i + 2] .. name, told_text(thing), 'KEEPTTL')
        end
        answer[#answer + 1] = {i - 1, name, thing.now, thing.state, thing.before}
        left = left - 1
      else
        call('ZREM', KEYS[i], name)
      end
    end
  end
  local first = call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')[2]
  if first then
    local wait = math.max(0, tonumber(first) - now)
    if soonest < 0 or wait < soonest then soonest = wait end
  end
end
answer[2] = soonest
return answer
