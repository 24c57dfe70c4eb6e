#!lua
-- buffers/append      retry: never
-- KEYS  1 user        list
-- ARGV  1 opid        8 random bytes: the start of each message's id
--       2 user        as it stands in keys
--       3 limits      messages that may wait (4 bytes), their bytes (4), ms they live (5), messages here (2)
--       4.. messages  kind (1 byte) and payload; then for each attachment: position of its message, name, ms it has
-- returns stored | replayed
-- stored: waiting, age of the oldest in ms; if anything was dropped: for age, capacity, bytes
-- replayed: waiting, age of the oldest in ms; a repeat of this operation was here first

local repeated = false
-- include append
