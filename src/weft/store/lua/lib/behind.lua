-- Refuses new runs while the archive is too far behind: the log holds all it has not stored yet. Needs home.
if home[4] then return redis.error_reply('WEFT archive_behind ' .. home[4]) end
