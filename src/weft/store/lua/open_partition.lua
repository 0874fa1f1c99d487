#!lua flags=allow-oom
--- open_partition: Creates the partition's epoch if there is none, and notes which server process was verified.
--- KEYS epoch created when missing
--- KEYS archived tells whether there is an archive to rebuild it from
--- ARGV incarnation:str run_id of the server process
--- ARGV known:str `1`: the caller knows that it was archived, and an empty one is a loss
--- RETURNS epoch, clock offset, `new` `moved` `same` `lost` or `closed` (it is being rebuilt), and `1` when it is archived
local home = call('HMGET', epoch_key, 'number', 'clock_ms', 'incarnation', 'recovering')
local archived = tostring(call('EXISTS', archived_key))
if not home[1] then
  if home[4] then return {home[4], '0', 'closed', archived} end
  if known == '1' then return {'0', '0', 'lost', archived} end
  -- Seconds since 1970: without a cold store to ask, that is a number no earlier life of this partition can have passed.
  local number = call('TIME')[1]
  call('HSET', epoch_key, 'number', number, 'incarnation', incarnation, 'levels', '5')
  return {number, '0', 'new', archived}
end
if home[3] == incarnation then return {home[1], home[2] or '0', 'same', archived} end
call('HSET', epoch_key, 'incarnation', incarnation)
return {home[1], home[2] or '0', 'moved', archived}
