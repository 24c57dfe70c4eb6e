-- include change
local MARK, MARKED = 60000, 32 * 16
local limits = {tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])}
-- By reason: entries, bytes, tokens, orphan.
local trimmed, gone = {0, 0, 0, 0}, {}

-- Is anything of this save here? Its entries share the first 8 bytes of their ids.
local function find(first)
  local batch = string.sub(ARGV[first], 1, 9)
  for _, entry in ipairs(call('LRANGE', KEYS[1], 1, -1)) do
    if string.sub(entry, 1, 9) == batch then return true end
  end
  return false
end

-- Digests of the calls that the newest `looked` entries make: the call that is asked for is usually near, and many
-- results at once must not make it read everything many times.
local known, looked = {}, 0
local function learn(entry)
  for at = 1, (links(entry)) do known[link(entry, at)] = true end
end
local function made_here(digest)
  while not known[digest] and looked < count do
    local upto = math.min(looked + 32, count)
    for _, entry in ipairs(call('LRANGE', KEYS[1], -upto, -looked - 1)) do learn(entry) end
    looked = upto
  end
  return known[digest]
end

local function answers_a_call(entry)
  local made, results = links(entry)
  for at = made + 1, made + results do
    if not made_here(link(entry, at)) then return false end
  end
  return true
end

local function over()
  if count > limits[1] then return 1 end
  if bytes > limits[2] then return 2 end
  if limits[3] > 0 and tokens > limits[3] then return 3 end
end

local function drop(entry, why)
  call('LREM', KEYS[1], 1, entry)
  uncount(entry)
  trimmed[why] = trimmed[why] + 1
  gone[string.sub(entry, 2, 11)] = true
end

-- Calls with all their results, as lists of places in `all`. A result belongs to the nearest call before it: some
-- providers use the same call id in every turn.
local function units_of(all)
  local unit, maker = {}, {}
  for at, entry in ipairs(all) do
    unit[at] = at
    local made, results = links(entry)
    for i = made + 1, made + results do
      local to, from = unit[maker[link(entry, i)] or at], unit[at]
      for j = from == at and at or 1, at do
        if unit[j] == from then unit[j] = to end
      end
    end
    for i = 1, made do maker[link(entry, i)] = at end
  end
  local members = {}
  for at = 1, #all do
    members[unit[at]] = members[unit[at]] or {}
    table.insert(members[unit[at]], at)
  end
  return unit, members
end

local function trim_units()
  local all = call('LRANGE', KEYS[1], 1, -1)
  local unit, members = units_of(all)
  local newest = unit[#all]
  local size = 0
  for _, at in ipairs(members[newest]) do size = size + #all[at] end
  local function drop_unit(name, why)
    for _, at in ipairs(members[name]) do drop(all[at], why) end
    members[name] = nil
  end
  -- The newest stays, with all that belongs to it, unless that alone is more than there may be.
  if #members[newest] > limits[1] or size > limits[2] then drop_unit(newest, over()) end
  for at = 1, #all do
    local why = over()
    if not why then return end
    if unit[at] ~= newest and members[unit[at]] then drop_unit(unit[at], why) end
  end
end

-- Mostly one entry goes that belongs to no other; then the others need not be read.
local function trim()
  local why = over()
  if not why then return end
  local _, results = links(call('LINDEX', KEYS[1], -1))
  if results > 0 then return trim_units() end
  while why do
    local oldest = call('LINDEX', KEYS[1], 1)
    if links(oldest) > 0 then return trim_units() end
    if count == 1 and why == 3 then return end
    drop(oldest, why)
    why = over()
  end
end

-- Stores the entries from ARGV[first] on, two words each: what stands before the time and what stands after it.
local function store(first)
  if ARGV[5] ~= '' and ARGV[5] ~= life then return {'changed'} end
  local ms = math.max(now, last)
  for at = first, #ARGV, 2 do
    local entry = ARGV[at] .. struct.pack('>I6', ms) .. ARGV[at + 1]
    if answers_a_call(entry) then
      if not meta then
        meta, life = '', ARGV[6]
        call('RPUSH', KEYS[1], meta)
      end
      call('RPUSH', KEYS[1], entry)
      learn(entry)
      looked = looked + 1
      count, bytes, tokens, last = count + 1, bytes + #entry, tokens + tokens_of(entry), ms
    else
      trimmed[4] = trimmed[4] + 1
      gone[string.sub(entry, 2, 11)] = true
    end
  end
  if meta then
    trim()
    write_meta()
    live(ARGV[1])
  end
  local kept = {}
  for at = first, #ARGV, 2 do
    kept[#kept + 1] = gone[string.sub(ARGV[at], 2, 11)] and '0' or '1'
  end
  return {'stored', count, life, over() and 1 or 0, table.concat(kept), trimmed[1], trimmed[2], trimmed[3], trimmed[4]}
end
