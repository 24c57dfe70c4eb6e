#!lua flags=no-writes
-- monitor/letters     retry: safe
-- KEYS  1 dead        stream
--       2 none        string never there: a slot that is moving is not used
-- ARGV  1 after       the last one seen; nothing: from the first
--       2 count
-- returns found
-- found: dead letters, oldest first

local from = ARGV[1] == '' and '-' or '(' .. ARGV[1]
return {'found', redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', ARGV[2])}
