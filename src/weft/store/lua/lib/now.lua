-- The one clock: Redis TIME plus an offset that only tests set. Needs home. Binds now_ms (number) and now (text).
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000) + (tonumber(home[2]) or 0)
local now = string.format('%d', now_ms)
