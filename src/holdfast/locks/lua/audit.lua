#!lua flags=no-writes
-- locks/audit         retry: safe
-- KEYS  1 audit       stream
-- ARGV  1 count
-- returns found
-- found: the newest entries first

return {'found', redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[1])}
