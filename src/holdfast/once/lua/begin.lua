#!lua
-- once/begin          retry: safe
-- KEYS  1 id          string
-- ARGV  1 token
--       2 digest      of what it is called with
--       3 lease       ms
-- returns granted | busy | found | mismatch
-- granted: fence. busy: ms until its holder must have renewed. found: what was left when it was done

-- include time
-- include claim
local there = call('GET', KEYS[1])
if not there or claimed_by(there, ARGV[1]) then
  if there then
    call('PEXPIRE', KEYS[1], ARGV[3])
  else
    call('SET', KEYS[1], 'p' .. ARGV[1] .. ARGV[2], 'PX', ARGV[3])
  end
  return {'granted', now_us}
end
local kind, _, digest, result = parse_claim(there)
if kind == 'm' then return {'found', ''} end
if digest ~= ARGV[2] then return {'mismatch'} end
if kind == 'p' then return {'busy', call('PTTL', KEYS[1])} end
return {'found', result}
