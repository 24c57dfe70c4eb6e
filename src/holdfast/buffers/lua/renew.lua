#!lua flags=allow-oom
-- buffers/renew       retry: safe
-- KEYS  1 due         zset
--       2.. users     list
-- ARGV  1.. pairs     token and ttl in ms, one pair for each user
-- returns renewed
-- renewed: server ms, then 1 or 0 for each user; 0: that batch is gone and is not made again

-- include user
local answer = {'renewed', now}
for i = 2, #KEYS do
  key = KEYS[i]
  local life = tonumber(ARGV[2 * i - 2])
  if read(call('LINDEX', key, 0)) and b > 0 and token == ARGV[2 * i - 3] and deadline > now then
    deadline, due = now + life, now + life
    write()
    call('ZADD', KEYS[1], deadline, string.sub(key, #KEYS[1]))
    local kept = math.max(life, n > 0 and last + ttl - now or 0) + GRACE
    call('PEXPIRE', key, kept)
    if call('EXISTS', (string.gsub(key, '}:u:', '}:a:', 1))) == 1 then
      call('PEXPIRE', (string.gsub(key, '}:u:', '}:a:', 1)), kept, 'GT')
    end
    if bc > 0 then call('PEXPIRE', (string.gsub(key, '}:u:', '}:c:', 1)), kept, 'GT') end
    answer[#answer + 1] = 1
  else
    answer[#answer + 1] = 0
  end
end
return answer
