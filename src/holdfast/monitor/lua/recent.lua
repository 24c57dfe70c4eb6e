#!lua flags=no-writes
-- monitor/recent      retry: safe
-- KEYS  1 log         stream
-- ARGV  1 count       changes at most
-- returns found
-- found: the changes that are still in the log, the newest first

return {'found', redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[1])}
