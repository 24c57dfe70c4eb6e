-- include time
-- All runs of a collection live in one slot, so that one script sees a run, its key and the queue together.
--
-- base .. r:<run>    hash   m record, d digest of what it was started with, i input, k key, y kind, o owner, c checkpoint,
--                           v result, w reason, p why it should stop
-- base .. s:<run>    hash   results of finished steps by name
-- base .. e:<run>    stream events: b <count (2), then each: size (4), payload> | r <attempt> <after>; the end of a run is in
--                           its record, because a stream for it alone would cost 4 kB
-- base .. due        zset   queued runs by the time (us) from which a worker may take them: by arrival
-- base .. held       zset   owned runs by the end of their lease (ms), and `!` with the last fence
-- base .. orphans    zset   queued runs that somebody claimed who is no runner, by the time (ms) they fail without him
-- base .. stuck      zset   runs that were reported to make no progress
-- base .. none              never there: named with each call, so that a cluster slot that is on its way to another node
--                           is not used until all of it has arrived
-- base .. idle       zset   workers that wait for a run, by the time of their last look
-- base .. is:<state> zset   runs by state: by arrival, last progress, or time of the end
-- base .. a:<key>    zset   runs that have a slot of the key, by arrival
-- base .. w:<key>    zset   runs that wait for a slot, by arrival
-- base .. h:<key>    zset   runs of the key that have ended, by time
-- base .. o:<owner>  zset   runs that an owner has
-- base .. arch       zset   ended runs that are to be archived
-- base .. sig:<client>, ev:<run>   channels
--
-- Record: version, state, flags, attempt, attempts it may have, those that did not count, fence, until when it is
-- owned, for how many ms it was given, times of creation, start, end, last progress and stop; the last event's id,
-- events kept, their bytes, events dropped, the last one's id, the last batch of events, the last event's id at the
-- checkpoint; slots of its key, life after the end, bounds of its events. After them: the owner's token.
local META = '>I1I1I1I2I2I2I8I8I4I8I8I8I8I8I8I4I4I8I4I8I4I4I8I4I2I8I4I8'
local META_SIZE = 147
local QUEUED, RUNNING, STOPPING, COMPLETED, FAILED, STOPPED = 1, 2, 3, 4, 5, 6
local STATES = {'queued', 'running', 'stopping', 'completed', 'failed', 'stopped'}
-- Flags: kept for the archive; claimed by somebody who is not a runner; said to be stuck; waits for a slot; has steps.
local ARCHIVE, GUARD, STUCK, WAITS, STEPS = 1, 2, 4, 8, 16
-- What nobody touches for so long is forgotten: no key lives for ever. A run's own keys are touched with each renewal.
local LIFE = 2592000000
local unpack_, pack_ = struct.unpack, struct.pack
local base, id
local state, flags, attempt, tries, free, fence, deadline, span, created, started, ended, progress, stop_at
local last_ms, last_seq, kept, bytes, dropped, gone_ms, gone_seq, batch, saved_ms, saved_seq
local slots, retention, max_events, max_bytes, token

local function has(flag) return flags % (2 * flag) >= flag end
local function set(flag) if not has(flag) then flags = flags + flag end end
local function unset(flag) if has(flag) then flags = flags - flag end end

-- False if there is no such run, or one that a newer version wrote: that one is a newer worker's.
local newer
local function read(run)
  id, newer = run, false
  local meta = call('HGET', base .. 'r:' .. id, 'm')
  if not meta then return false end
  if string.byte(meta) ~= 1 then
    newer = true
    return false
  end
  local version
  version, state, flags, attempt, tries, free, fence, deadline, span, created, started, ended, progress, stop_at,
    last_ms, last_seq, kept, bytes, dropped, gone_ms, gone_seq, batch, saved_ms, saved_seq,
    slots, retention, max_events, max_bytes = unpack_(META, meta)
  token = string.sub(meta, META_SIZE + 1)
  return true
end

-- The run that a caller names, where there is nothing else to do.
local function find(run)
  if read(run) then return true end
  if newer then error('run a newer version here: a newer one wrote this run') end
  return false
end

-- Out of an index, because it is gone.
local function drop(name, run)
  if not newer then call('ZREM', base .. name, run) end
end

-- Writes the record down, with more fields if given.
local function write(...)
  call('HSET', base .. 'r:' .. id, 'm', pack_(META, 1, state, flags, attempt, tries, free, fence, deadline, span, created, started,
    ended, progress, stop_at, last_ms, last_seq, kept, bytes, dropped, gone_ms, gone_seq, batch, saved_ms, saved_seq,
    slots, retention, max_events, max_bytes) .. token, ...)
end

-- Into an index, which lives as long as anything is put into it now and then.
local function index(name, score, ...)
  call('ZADD', base .. name, score, ...)
  call('PEXPIRE', base .. name, math.max(LIFE, 2 * (retention or 0)))
end

-- It makes progress, or nobody has it any more.
local function unstick()
  if has(STUCK) then
    unset(STUCK)
    call('ZREM', base .. 'stuck', id)
  end
end

-- The run's own keys live on.
local function touch()
  call('PEXPIRE', base .. 'r:' .. id, LIFE)
  if last_ms > 0 then call('PEXPIRE', base .. 'e:' .. id, LIFE) end
  if has(STEPS) then call('PEXPIRE', base .. 's:' .. id, LIFE) end
end

-- Is it owned by somebody whose time is not over?
local function owned()
  return (state == RUNNING or state == STOPPING) and deadline > now
end

local function mine(holder)
  return token == holder and owned()
end

-- What a caller is told of a run.
local function describe(run)
  return call('HMGET', base .. 'r:' .. run, 'm', 'k', 'y', 'o', 'w', 'p', 'i', 'v')
end
