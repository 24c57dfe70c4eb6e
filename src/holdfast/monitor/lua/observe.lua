#!lua
-- monitor/observe     retry: safe
-- KEYS  1 log         stream
--       2 none        string never there: a slot that is moving is not used
--       3.. things    string
-- ARGV  1 base        what the monitor's keys start with
--       2 op          eight bytes: who repeats this is answered the same
--       3 keep        ms for which a thing is remembered
--       4 window      ms in which a state is told once; 0: every change is told
--       5 most        changes in the log
--       6.. each      digest, state, identity and time in microseconds (nothing: now), four for each thing
-- returns found
-- found: for each thing the outcome, the change's time in the log (0: none) and the state before

-- include time
-- include told
-- include log
local RECENT = 4  -- changes whose operations are remembered, so that a late repeat is known
local life, window, most, answer = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), {'found'}

local function put(i, thing) call('SET', KEYS[i], told_text(thing), 'PX', life) end

local function first_seen(i, digest, state, identity, observed)
  if not room(most) then return 'full', 0, '' end
  local thing = new_thing(digest, state, ARGV[2])
  thing.observed, thing.number = observed, add('f', identity, '', state, observed)
  if window > 0 then thing.before = identity else thing.when = {{digest, now, ARGV[2]}} end
  put(i, thing)
  return 'first', thing.number, ''
end

local function other_state(i, text, digest, state, identity, observed)
  local thing = parse_told(text)
  if not (window > 0 and told_at(thing, digest, window)) and not room(most) then return 'full', 0, '' end
  local before, reason, wait = thing.state, nil, nil
  reason, wait = moved(thing, digest, state, window == 0 and -1 or window, ARGV[2])
  thing.observed, thing.before = observed, window > 0 and identity or ''
  while window == 0 and #thing.when > RECENT do table.remove(thing.when, 1) end
  local name = string.sub(KEYS[i], #ARGV[1] + 3)
  if reason == 'changed' then
    thing.number = add('c', identity, before, state, observed)
    if window > 0 then call('ZREM', base_key('wait'), name) end
  else
    thing.number = 0
    if wait then
      call('ZADD', base_key('wait'), now + wait, name)
      keep('wait')
    else
      call('ZREM', base_key('wait'), name)
    end
  end
  put(i, thing)
  return reason, thing.number, before
end

local function again(text)
  local thing = parse_told(text)
  local number = string.format('%d-0', thing.number)
  local entry = thing.number > 0 and call('XRANGE', KEYS[1], number, number)[1]
  return REASON[thing.why], thing.number, entry and entry[2][6] or ''
end

local function look(i, digest, state, identity, when)
  local text = call('GET', KEYS[i])
  if not text then return first_seen(i, digest, state, identity, when == '' and now_us or tonumber(when)) end
  local same = digest_now(text) == digest
  if same and string.sub(text, 1, 8) == ARGV[2] then return again(text) end
  if not same and told_by(parse_told(text), digest, ARGV[2]) then  -- and another one came after it
    return 'changed', 0, ''
  end
  local seen = struct.unpack('>d', text, 10)
  -- Now is never older, whatever the clock does.
  local observed = when == '' and math.max(now_us, seen + 1) or tonumber(when)
  -- Of two that say the same time the first one stands: else a copy that comes late would turn it back.
  if observed < seen or (observed == seen and not same) then return 'older', 0, '' end
  if not same then return other_state(i, text, digest, state, identity, observed) end
  call('SETRANGE', KEYS[i], 9, struct.pack('>d', observed))
  call('PEXPIRE', KEYS[i], life)
  return 'unchanged', 0, ''
end

for i = 3, #KEYS do
  local at = 6 + (i - 3) * 4
  local outcome, number, before = look(i, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
  answer[#answer + 1] = outcome
  answer[#answer + 1] = string.format('%d', number)
  answer[#answer + 1] = before
end
added()
return answer
