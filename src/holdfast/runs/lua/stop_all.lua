#!lua flags=allow-oom
-- runs/stop_all       retry: safe
-- KEYS  1 active      zset
--       2 waiting     zset
--       3 held        zset
--       4 none        string never there: a slot that is moving is not used
-- ARGV  1 base        what the collection's keys start with
--       2 reason
-- returns found
-- found: how many runs of the key had not ended; those that wait go first, so that none of them gets a free slot

-- include halt
base = ARGV[1]
local runs = call('ZRANGE', KEYS[2], 0, -1)
for _, run in ipairs(call('ZRANGE', KEYS[1], 0, -1)) do runs[#runs + 1] = run end
local count = 0
for _, run in ipairs(runs) do
  if read(run) then
    judge()
    if state < COMPLETED then count = count + 1 end
    halt(ARGV[2])
  end
end
return {'found', count}
