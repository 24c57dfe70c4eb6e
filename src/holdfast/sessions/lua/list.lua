#!lua flags=no-writes
-- sessions/list       retry: safe
-- KEYS  1 user        zset
-- returns found
-- found: the user's sessions, each with when it was last seen

return {'found', redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')}
