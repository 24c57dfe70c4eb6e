#!lua
-- once/gate           retry: safe
-- KEYS  1.. pairs     string what is known of a thing, and when its shard must look at which; a pair for each
-- ARGV  1 window      ms in which a state is told once
--       2 keep        ms for which a thing is remembered
--       3 trailing    1: what was not told is told at the end of its window
--       4 op          eight bytes: who repeats this is answered the same
--       5.. things    digest, state and name in the index, three for each
-- returns found
-- found: for each thing why it is told or not, and the state before

-- include time
-- include told
local window, answer = tonumber(ARGV[1]), {'found'}
for i = 1, #KEYS, 2 do
  local first = 5 + (i - 1) / 2 * 3
  local digest, state, name = ARGV[first], ARGV[first + 1], ARGV[first + 2]
  local text = call('GET', KEYS[i])
  local reason, before, wait = 'unchanged', '', nil
  if not text then
    reason = 'first'
    call('SET', KEYS[i], told_text(new_thing(digest, state, ARGV[4])), 'PX', ARGV[2])
  elseif string.sub(text, 1, 8) == ARGV[4] and digest_now(text) == digest then
    local thing = parse_told(text)
    reason, before = REASON[thing.why], thing.before
  elseif digest_now(text) == digest then
    local thing = parse_told(text)
    before = thing.state
    if thing.told == UNTOLD and not told_at(thing, digest, window) then
      -- It was judged, and whoever asked was never answered.
      reason, thing.op, thing.why = 'changed', ARGV[4], LETTER.changed
      note_told(thing, digest, ARGV[4])
      call('SET', KEYS[i], told_text(thing), 'PX', ARGV[2])
      call('ZREM', KEYS[i + 1], name)
    else
      call('PEXPIRE', KEYS[i], ARGV[2])
    end
  elseif told_by(parse_told(text), digest, ARGV[4]) then
    -- The first reply was lost, and another caller was faster than this repeat: what is told last is not sure any more.
    reason = 'changed'
    local thing = parse_told(text)
    local at = told_at(thing, thing.now, window)
    thing.told = UNKNOWN
    call('SET', KEYS[i], told_text(thing), 'PX', ARGV[2])
    if ARGV[3] == '1' then
      call('ZADD', KEYS[i + 1], at and at + window or now, name)
      call('PEXPIRE', KEYS[i + 1], ARGV[2])
    end
  else
    local thing = parse_told(text)
    before = thing.state
    local pending = thing.now ~= thing.told
    reason, wait = moved(thing, digest, state, window, ARGV[4])
    call('SET', KEYS[i], told_text(thing), 'PX', ARGV[2])
    if wait and ARGV[3] == '1' then
      call('ZADD', KEYS[i + 1], now + wait, name)
      call('PEXPIRE', KEYS[i + 1], ARGV[2])
    elseif pending then
      call('ZREM', KEYS[i + 1], name)
    end
  end
  answer[#answer + 1] = reason
  answer[#answer + 1] = before
end
return answer
