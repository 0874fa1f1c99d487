-- Refuses every write when the partition's epoch is missing or not the caller's, and reads the clock once.
-- Needs epoch_key and epoch. Binds home, which the clock and the controls are read from.
local home = call('HMGET', epoch_key, 'number', 'clock_ms', 'controls', 'behind', 'fresh', 'levels')
if not home[1] then return redis.error_reply('WEFT epoch_missing') end
if home[1] ~= epoch then
  return redis.error_reply('WEFT stale_epoch the partition is at epoch ' .. home[1] .. ', the caller at ' .. epoch)
end
