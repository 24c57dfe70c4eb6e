#!lua flags=allow-oom
-- once/renew          retry: safe
-- KEYS  1 none        string never there
--       2.. ids       string
-- ARGV  1.. pairs     token and ttl in ms, one pair for each id
-- returns renewed
-- renewed: server ms, then 1 or 0 for each id; 0: that claim is gone and is not made again

-- include time
-- include claim
local answer = {'renewed', now}
for i = 2, #KEYS do
  local mine = claimed_by(call('GET', KEYS[i]), ARGV[2 * i - 3])
  if mine then call('PEXPIRE', KEYS[i], ARGV[2 * i - 2]) end
  answer[#answer + 1] = mine and 1 or 0
end
return answer
