-- Refuses a caller that does not know what operators have set since. Needs home and controls.
if (home[3] or '0') ~= controls then return redis.error_reply('WEFT stale_controls') end
