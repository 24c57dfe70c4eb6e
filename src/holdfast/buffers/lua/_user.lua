-- include record
-- Writes the record down: in the place of the old one, or in front if that was popped.
local function write()
  local meta = pack_(META, 1, n, bytes, oldest, last, due, thr, age, quiet, ttl, np, again, force)
  if b > 0 then meta = meta .. pack_(HELD, b, bc, attempt, batch, fence, deadline, nf, span) .. token end
  if popped then
    call('LPUSH', key, meta)
    popped = false
  else
    call('LSET', key, 0, meta)
  end
end

-- The indexes of a shard live as long as somebody is in one of them.
local function prolong(ms)
  for _, index in ipairs({'due', 'old', 'big'}) do call('PEXPIRE', base .. index, ms) end
end

-- Where the user is among the oldest or the largest; 0: nowhere.
local function rank(index, score)
  if score == 0 then
    call('ZREM', base .. index, member)
  elseif call('ZADD', base .. index, score, member) > 0 then
    local kept, wanted = call('PTTL', base .. index), math.max(604800000, 2 * (ttl + GRACE))
    if kept < wanted / 2 then call('PEXPIRE', base .. index, wanted) end
  end
end

local function size_class(number)
  return number < 16 and 0 or math.floor(math.log(number) / math.log(2) + 1e-9)
end

-- What waits lives until the last of it is too old; a batch as long again after nobody has it.
local function life()
  local ends = last + ttl
  if b > 0 and deadline + ttl > ends then ends = deadline + ttl end
  return ends - now + GRACE
end
