#!lua
-- buffers/flush       retry: safe
-- KEYS  1 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
-- returns forced | empty
-- forced: waiting; a worker takes them as soon as they are ready and no batch is in flight

-- include drop
key, member, base = KEYS[1], ARGV[1], ARGV[2]
if not read(call('LINDEX', key, 0)) then return {'empty'} end
expire()
if n > 0 then force = 1 end
finish(false)
if n == 0 then return {'empty'} end
return {'forced', n}
