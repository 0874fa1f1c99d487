#!lua flags=allow-oom
--- mark_archived: Notes up to which entry the log is archived, and to which database; trims what was archived long enough ago.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS archived the mark
--- ARGV epoch:str the epoch the caller knows
--- ARGV database:str id of the database
--- ARGV name:str its URL, without a password
--- ARGV entry:str the last entry that is archived; `0-0`: none yet
--- ARGV indexed:str the last entry whose runs can be found there: the log keeps what comes after it
--- ARGV n:int how many entries were archived since the last call
--- ARGV hot_ms:int how long the log keeps what is archived
--- ERRS epoch_missing stale_epoch foreign_archive
--- RETURNS how many entries were trimmed
--- @include lib/fence
--- @include lib/now
local of = call('HMGET', archived_key, 'database', 'name', 'passed')
if of[1] and of[1] ~= database then return redis.error_reply('WEFT foreign_archive ' .. (of[2] or '')) end
if not of[1] then
  call('HDEL', epoch_key, 'retired')
  -- From the very first entry on: every run that the store has is in the archive, or named by what is still to be indexed.
  local added, length = 0, 0
  if call('EXISTS', log_key) == 1 then
    local about = call('XINFO', 'STREAM', log_key)
    for i = 1, #about, 2 do
      if about[i] == 'entries-added' then added = about[i + 1] elseif about[i] == 'length' then length = about[i + 1] end
    end
  end
  if entry == '0-0' and added == length then call('HSET', archived_key, 'whole', 1) end
end
local passed = (of[3] or 0) + n
-- Who has come to the end knows the number exactly, whatever was trimmed or lost before.
if call('EXISTS', log_key) == 1 and #call('XRANGE', log_key, '(' .. entry, '+', 'COUNT', 1) == 0 then
  local about = call('XINFO', 'STREAM', log_key)
  for i = 1, #about, 2 do
    if about[i] == 'entries-added' then passed = about[i + 1] end
  end
end
call('HSET', archived_key, 'database', database, 'name', name, 'entry', entry, 'passed', passed, 'indexed', indexed, 'at', now)
if indexed == '0-0' then return 0 end
-- By the server's own clock, like the entries; never beyond what is indexed. `~`: whole nodes only, quick however many.
local clock = time[1] * 1000 + math.floor(time[2] / 1000)
local before, last, limit = clock - hot_ms, tonumber(string.match(indexed, '^%d+')), indexed
-- A clock that was set back far says nothing of the age of entries: what is indexed goes, or the log would grow until it has caught up.
if before < last and last <= clock + hot_ms then limit = string.format('%d', math.max(0, before)) end
return call('XTRIM', log_key, 'MINID', '~', limit)
