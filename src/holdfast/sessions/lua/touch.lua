#!lua flags=allow-oom
-- sessions/touch      retry: safe
-- KEYS  1 session     list
-- ARGV  1 ttl         ms it lives at least from now on
-- returns touched | missing

-- include change
if not meta then return {'missing'} end
live(ARGV[1])
return {'touched'}
