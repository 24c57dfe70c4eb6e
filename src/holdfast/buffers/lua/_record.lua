-- include time
-- One user's buffer is one list: a packed record, then the batch in flight (b messages), then what waits (n messages).
-- A batch is a prefix that nobody moves until it is acknowledged, so a batch taken again is the same batch.
--
-- base .. u:<user>   list   record, messages: id (10 bytes), server ms (6), kind (1: has attachments), payload
-- base .. c:<user>   list   conversation pairs: server ms (6), life (5), opid (8), payload
-- base .. a:<user>   hash   attachments: <id> "open latest-deadline", <id><name> p<deadline> | r<payload> | f
-- base .. g:<user>   list   gone: server ms (6), fence that acknowledged (8), ids of young messages
-- base .. r:<user>   string an operation of this user was repeated: look closer, the first request may come last
-- base .. x:<batch>  list   dead letter
-- base .. due        zset   users by the time somebody must look at them, and `!` with the last fence
-- base .. old        zset   users by the time of their oldest waiting message
-- base .. big        zset   users with sixteen waiting messages and more, by how many about: brought up to date when that
--                           doubles or halves, so that most appends need not
-- base .. idle       zset   workers by the time of their last look
-- base .. dead       zset   dead letters by time
-- base .. stat       hash   triggers of the absorber, counters
--
-- Record: version, waiting messages, their bytes, time of the oldest, time of the newest, time in `due`, threshold,
-- max age, quiet period, life, messages with attachments, until when repeats are looked for, forced. The triggers are
-- copied from `stat` when a record is made, so that an append need not read them.
-- Of a batch: its messages, its pairs, attempt, id, fence, until when nobody else may take it, how many of its
-- messages have attachments, for how many ms it was given, token.
local META, HELD = '>I1I3I4I6I6I6I3I5I4I5I3I6I1', '>I3I3I2I8I8I6I3I5'
local META_SIZE, HELD_SIZE = 53, 38
local GRACE = 60000
local REMEMBER = 60000
local unpack_, pack_ = struct.unpack, struct.pack
local key, base, member
local n, bytes, oldest, last, due, thr, age, quiet, ttl, np, again, force
local b, bc, attempt, batch, fence, deadline, nf, span, token
local popped
local known_n, known_oldest

-- False if there is no record.
local function read(meta)
  b, bc, attempt, batch, fence, deadline, nf, span, token, popped = 0, 0, 0, 0, 0, 0, 0, 0, '', false
  if not meta then
    n, bytes, oldest, last, due, thr, age, quiet, ttl, np, again, force = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    known_n, known_oldest = 0, 0
    return false
  end
  local version
  version, n, bytes, oldest, last, due, thr, age, quiet, ttl, np, again, force = unpack_(META, meta)
  known_n, known_oldest = n, oldest
  if version ~= 1 then error('run a newer version here: a newer one wrote this buffer') end
  if #meta > META_SIZE then
    b, bc, attempt, batch, fence, deadline, nf, span = unpack_(HELD, meta, META_SIZE + 1)
    token = string.sub(meta, META_SIZE + HELD_SIZE + 1)
  end
  return true
end
