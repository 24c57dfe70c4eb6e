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

-- What waits lives until the last of it is too old; a batch as long again after nobody has it.
local function life()
  local ends = last + ttl
  if b > 0 and deadline + ttl > ends then ends = deadline + ttl end
  return ends - now + GRACE
end
