-- One thing: what it is now, what was told of it last, and which states were told of it when.
-- operation 8, why 1, observed 8, number 8, digest now 16, digest told 16, how many states were told 2, each digest 16,
-- ms 8 and operation 8, length 4 of the state now, that, the state before or whatever else belongs to it.
local TOLD_MOST = 32
-- As what was told last: somebody is telling it at this moment; and: it was judged, but nobody heard the answer.
local UNKNOWN, UNTOLD = string.rep('\0', 16), string.rep('\1', 16)
local LETTER = {first = 'f', changed = 'c', repeated = 'r'}
local REASON = {f = 'first', c = 'changed', r = 'repeated'}

local function digest_now(text) return string.sub(text, 26, 41) end

local function parse_told(text)
  local thing = {
    op = string.sub(text, 1, 8), why = string.sub(text, 9, 9), observed = struct.unpack('>d', text, 10),
    number = struct.unpack('>d', text, 18), now = digest_now(text), told = string.sub(text, 42, 57), when = {},
  }
  local count, at = struct.unpack('>I2', text, 58), 60
  for _ = 1, count do
    thing.when[#thing.when + 1] = {
      string.sub(text, at, at + 15), (struct.unpack('>d', text, at + 16)), string.sub(text, at + 24, at + 31),
    }
    at = at + 32
  end
  local size = struct.unpack('>I4', text, at)
  thing.state = string.sub(text, at + 4, at + 3 + size)
  thing.before = string.sub(text, at + 4 + size)
  return thing
end

local function told_text(thing)
  local parts = {
    thing.op, thing.why, struct.pack('>dd', thing.observed, thing.number), thing.now, thing.told,
    struct.pack('>I2', #thing.when),
  }
  for _, one in ipairs(thing.when) do
    parts[#parts + 1] = one[1]
    parts[#parts + 1] = struct.pack('>d', one[2])
    parts[#parts + 1] = one[3]
  end
  parts[#parts + 1] = struct.pack('>I4', #thing.state)
  parts[#parts + 1] = thing.state
  parts[#parts + 1] = thing.before
  return table.concat(parts)
end

-- When this state was told within the window; forgets what is older. A window below 0 has no end and holds back nothing.
local function told_at(thing, digest, window)
  local kept, found = {}, nil
  for _, one in ipairs(thing.when) do
    if window < 0 or one[2] > now - window then
      kept[#kept + 1] = one
      if one[1] == digest and window >= 0 then found = one[2] end
    end
  end
  thing.when = kept
  return found
end

local function note_told(thing, digest, op)
  local kept = {}
  for _, one in ipairs(thing.when) do
    if one[1] ~= digest then kept[#kept + 1] = one end
  end
  if #kept >= TOLD_MOST then table.remove(kept, 1) end
  kept[#kept + 1] = {digest, now, op}
  thing.when, thing.told = kept, digest
end

-- It is in another state now. Answers why it is told or not, and ms until it is to be looked at again, if ever.
local function moved(thing, digest, state, window, op)
  local before, wait = thing.state, nil
  local at = told_at(thing, digest, window)
  thing.now, thing.state, thing.before, thing.op = digest, state, before, op
  if at then
    thing.why = LETTER.repeated
    if thing.told ~= digest then wait = at + window - now end
  else
    thing.why = LETTER.changed
    note_told(thing, digest, op)
  end
  return REASON[thing.why], wait
end

-- Did this operation have the state told, before another one moved the thing on?
local function told_by(thing, digest, op)
  for _, one in ipairs(thing.when) do
    if one[1] == digest and one[3] == op then return true end
  end
  return false
end

-- What nobody knew before. It counts as told, but not as told a first time of several: a return to it is news.
local function new_thing(digest, state, op)
  return {
    op = op, why = LETTER.first, observed = 0, number = 0, now = digest, told = digest, when = {}, state = state,
    before = '',
  }
end
