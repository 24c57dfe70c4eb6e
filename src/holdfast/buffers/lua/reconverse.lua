#!lua
-- buffers/reconverse  retry: opid
-- KEYS  1 pairs       list
--       2 user        list
-- ARGV  1 user        as it stands in keys
--       2 base        what the shard's keys start with
--       3 capacity    pairs that may wait
--       4 life        ms
--       5 ttl         ms that messages live
--       6 opid        8 random bytes
--       7.. pairs     payloads
-- returns stored | replayed
-- stored: pairs waiting; dropped for age, for capacity

local repeated = true
-- include converse
