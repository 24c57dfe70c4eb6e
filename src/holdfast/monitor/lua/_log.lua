-- What a monitor keeps, all in one slot. `base` is what its keys start with.
-- base .. s:THING    string what is known of it (see told)
-- base .. log        stream changes, by the time in microseconds at which each was found; the oldest go
-- base .. seq        string the newest of these times: the next is later, also after a failover that forgot some
-- base .. cur        hash   how far each kind of reader has come in the log, and when one looked (@)
-- base .. code       hash   subscribers that are functions, as their processes have said; nothing: unsubscribed
-- base .. subs       string when the subscribers were changed last, in microseconds
-- base .. q:WHO      list   what a subscriber is to be told of, oldest first: times, or changes whole (after a !)
-- base .. heads      zset   subscribers by the first change that stands in their queue as a time only
-- base .. d:WHO      hash   how far telling has come: who tells, how many changes, since which attempt
-- base .. due, slow, call:WHAT  zsets  when to tell whom: as usual; those that failed last; those that are functions
-- base .. wait       zset   things whose state was not told, by the end of its window
-- base .. dead       stream what could not be told
local KEEP = 2592000000
local QUEUE_MOST = 10000
local DAY = 86400000
local NUMBERS, AT_ONCE = 100, 20

local function base_key(name) return ARGV[1] .. name end

local function known(text)
  return text and text ~= '' and tonumber(text) or 0
end

local function keep(name) call('PEXPIRE', base_key(name), KEEP) end

-- Up to where has everybody read? Those who keep history count while they live: there may be none any more.
local function read_by_all()
  local told, kept, looked = unpack(call('HMGET', base_key('cur'), 'deliver', 'history', 'history@'))
  if kept and known(looked) >= now - DAY then return math.min(known(told), known(kept)) end
  return known(told)
end

-- A change whole: its time and its fields, each with its length before it.
local function whole(number, fields)
  local parts = {'!', struct.pack('>I4', #number), number}
  for _, field in ipairs(fields) do
    parts[#parts + 1] = struct.pack('>I4', #field)
    parts[#parts + 1] = field
  end
  return table.concat(parts)
end

-- The time and the fields of what stands in a queue; nothing if the log has it no more.
local function change_of(item)
  if string.sub(item, 1, 1) ~= '!' then
    local entry = call('XRANGE', base_key('log'), item .. '-0', item .. '-0')[1]
    return entry and {item, entry[2]}
  end
  local at, parts = 2, {}
  while at <= #item do
    local size = struct.unpack('>I4', item, at)
    parts[#parts + 1] = string.sub(item, at + 4, at + 3 + size)
    at = at + 4 + size
  end
  return {table.remove(parts, 1), parts}
end

-- Whoever is behind may be so for longer than the log keeps what it waits for: from now on it has that whole.
local function make_whole(who)
  local queue = base_key('q:' .. who)
  local items = call('LRANGE', queue, 0, -1)
  for i, item in ipairs(items) do
    if string.sub(item, 1, 1) ~= '!' then
      local change = change_of(item)
      if change then call('LSET', queue, i - 1, whole(change[1], change[2])) end
    end
  end
  call('ZREM', base_key('heads'), who)
end

-- Is there room for one more change? At the bound everything goes that everybody has read and nobody waits for.
local function room(most)
  if call('XLEN', base_key('log')) < most then return true end
  local oldest = tonumber(string.sub(call('XRANGE', base_key('log'), '-', '+', 'COUNT', 1)[1][1], 1, -3))
  local floor = read_by_all()
  if oldest > floor then return false end
  for _, who in ipairs(call('ZRANGEBYSCORE', base_key('heads'), '-inf', oldest, 'LIMIT', 0, AT_ONCE)) do
    make_whole(who)
  end
  local head = call('ZRANGE', base_key('heads'), 0, 0, 'WITHSCORES')[2]
  if head then floor = math.min(floor, tonumber(head) - 1) end
  call('XTRIM', base_key('log'), 'MINID', '=', string.format('%d-0', floor + 1))
  return true
end

local last, idle
local function add(kind, identity, before, after, observed)
  if not last then
    -- Also after what readers have seen: a failover may have forgotten the number, and set the clock back.
    local told, kept = unpack(call('HMGET', base_key('cur'), 'deliver', 'history'))
    local newest = known(call('GET', base_key('seq')))
    -- Who is behind reads on by itself; who has seen everything waits to be told.
    idle = known(told) >= newest or known(kept) >= newest
    last = math.max(newest, known(told), known(kept))
  end
  last = math.max(last + 1, now_us)
  call('XADD', base_key('log'), string.format('%d-0', last), 'k', kind, 'i', identity, 'b', before, 'a', after, 'o',
    string.format('%d', observed))
  return last
end

-- After the last `add`: remember the time, and tell whoever reads.
local function added()
  if not last then return end
  call('SET', base_key('seq'), string.format('%d', last), 'PX', KEEP)
  keep('log')
  keep('cur')
  if idle then call('SPUBLISH', base_key('ch'), '1') end
end

-- The subscribers are others now.
local function changed_subscribers()
  local version = math.max(known(call('GET', base_key('subs'))) + 1, now_us)
  call('SET', base_key('subs'), string.format('%d', version), 'PX', KEEP)
  call('SPUBLISH', base_key('ch'), '1')
end
