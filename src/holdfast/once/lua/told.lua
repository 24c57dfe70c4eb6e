#!lua
-- once/told           retry: safe
-- KEYS  1 thing       string
--       2 due         zset
-- ARGV  1 digest      of the state that was told
--       2 name        in the index
--       3 keep        ms for which a thing is remembered
-- returns settled | changed
-- changed: it is in another state by now, which is told by itself

-- include time
-- include told
local text = call('GET', KEYS[1])
if not text or digest_now(text) ~= ARGV[1] then return {'changed'} end
call('ZREM', KEYS[2], ARGV[2])
local thing = parse_told(text)
if thing.told ~= ARGV[1] then
  note_told(thing, ARGV[1])
  call('SET', KEYS[1], told_text(thing), 'PX', ARGV[3])
end
return {'settled'}
