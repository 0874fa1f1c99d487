-- Drops one pebble for whoever blocks on the key, unless one lies there already.
local function wake(key)
  if call('LLEN', key) == 0 then call('LPUSH', key, '1') end
end
