-- Server time: the only clock that decides expiry.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- Lua writes large numbers as 1.7e+15; the server must see every digit.
local function int(number)
  return string.format('%.0f', number)
end
