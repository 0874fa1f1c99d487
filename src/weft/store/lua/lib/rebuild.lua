-- Refuses every write unless the partition is closed, to be rebuilt under the caller's epoch. Binds home, like lib/fence.
local home = call('HMGET', epoch_key, 'recovering', 'clock_ms', 'controls')
if not home[1] then return redis.error_reply('WEFT epoch_missing') end
if home[1] ~= epoch then
  return redis.error_reply('WEFT stale_epoch the partition is at epoch ' .. home[1] .. ', the caller at ' .. epoch)
end
