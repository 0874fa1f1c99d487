-- A rate counts beginnings. A step that is let through reserves its units (`@<run>`) and spends them when a worker begins it, so that what
-- waits for a worker does not begin in one burst. Returns when `cost` more units may pass, 0 for now, and by how many some are reserved. A
-- unit counts until the end of its grain plus the whole window, so that no stretch of the window's length ever sees more than n.
local function rate_opens(key, n, window, cost, run)
  local grain = math.max(1, math.floor(window / 50))
  local flat, used, live, waiting = call('HGETALL', key), 0, {}, 0
  for f = 1, #flat, 2 do
    local ends = tonumber(flat[f]) and (flat[f] + 1) * grain + window
    if not ends then
      if flat[f] ~= '@' .. run then used, waiting = used + flat[f + 1], waiting + 1 end
    elseif ends > now_ms then
      used = used + flat[f + 1]
      live[#live + 1] = {ends, tonumber(flat[f + 1])}
    else
      call('HDEL', key, flat[f])
    end
  end
  if used + cost <= n then return 0, waiting end
  table.sort(live, function(a, b) return a[1] < b[1] end)
  for _, grain_used in ipairs(live) do
    used = used - grain_used[2]
    if used + cost <= n then return grain_used[1] end
  end
  return now_ms + window
end
