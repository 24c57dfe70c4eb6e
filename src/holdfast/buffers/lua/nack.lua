#!lua flags=allow-oom
-- buffers/nack        retry: safe
-- KEYS  1 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
--       3 token
--       4 batch       0: whichever it holds
--       5 delay       ms until it may be taken again
--       6 attempts    after so many it goes to the dead letters; 0: this attempt does not count
--       7 error       free text
-- returns returned | buried | not_held

-- include letter
key, member, base = KEYS[1], ARGV[1], ARGV[2]
local known = read(call('LINDEX', key, 0))
if not known or b == 0 or (ARGV[4] ~= '0' and batch ~= tonumber(ARGV[4])) or token ~= ARGV[3] or deadline <= now then
  -- A repeat of what buried it?
  if call('EXISTS', base .. 'x:' .. ARGV[4]) == 1 then return {'buried'} end
  return {'not_held'}
end
local most = tonumber(ARGV[6])
if most > 0 and attempt >= most then
  bury(ARGV[7])
  finish(false)
  return {'buried'}
end
if most == 0 then attempt = attempt - 1 end
token, span, due = '', tonumber(ARGV[5]), 0
deadline = now + span
finish(false)
return {'returned'}
