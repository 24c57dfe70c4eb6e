#!lua flags=no-writes
-- monitor/letters     retry: safe
-- KEYS  1 dead        stream
--       2 none        string never there: a slot that is moving is not used
-- ARGV  1 after       the last one seen; nothing: from the first
--       2 count
--       3 letter      only this one; nothing: any
-- returns found
-- found: dead letters, oldest first

if ARGV[3] ~= '' then return {'found', redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])} end
local from = ARGV[1] == '' and '-' or '(' .. ARGV[1]
return {'found', redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', ARGV[2])}
