#!lua flags=allow-oom
-- sessions/clear      retry: safe
-- KEYS  1 session     list
-- returns cleared
-- cleared: 1 if it was there

return {'cleared', redis.call('DEL', KEYS[1])}
