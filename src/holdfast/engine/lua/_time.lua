-- Server time: the only clock that decides expiry. Numbers go to the server as they are; into text only through
-- %d, because Lua itself writes 1.794729490522e+15.
local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = (now_us - now_us % 1000) / 1000
