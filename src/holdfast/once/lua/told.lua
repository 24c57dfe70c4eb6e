#!lua flags=allow-oom
-- once/told           retry: safe
-- KEYS  1 thing       string
--       2 due         zset
-- ARGV  1 digest      of the state that was told
--       2 name        in the index
--       3 keep        ms for which a thing is remembered
--       4 window      ms in which a state is told once
--       5 op          eight bytes
-- returns settled | changed
-- changed: it is in another state by now, which is told once more: this one may have come after it

-- include time
-- include told
local text = call('GET', KEYS[1])
if not text then return {'changed'} end
local thing = parse_told(text)
if thing.now ~= ARGV[1] then
  local at = told_at(thing, thing.now, tonumber(ARGV[4]))
  if thing.told ~= UNKNOWN then
    thing.told = UNKNOWN
    call('SET', KEYS[1], told_text(thing), 'PX', ARGV[3])
    call('ZADD', KEYS[2], at and at + ARGV[4] or now, ARGV[2])
    call('PEXPIRE', KEYS[2], ARGV[3])
  end
  return {'changed'}
end
call('ZREM', KEYS[2], ARGV[2])
if thing.told ~= ARGV[1] then
  note_told(thing, ARGV[1], ARGV[5])
  call('SET', KEYS[1], told_text(thing), 'PX', ARGV[3])
end
return {'settled'}
