#!lua flags=allow-oom
--- open_partition: Creates the partition's epoch if there is none, and notes which server process was verified.
--- KEYS epoch created when missing
--- ARGV incarnation:str run_id of the server process
--- RETURNS epoch, clock offset, `new` `moved` or `same`
local home = call('HMGET', epoch_key, 'number', 'clock_ms', 'incarnation')
if not home[1] then
  -- Seconds since 1970: without a cold store to ask, that is a number no earlier life of this partition can have passed.
  local number = call('TIME')[1]
  call('HSET', epoch_key, 'number', number, 'incarnation', incarnation)
  return {number, '0', 'new'}
end
if home[3] == incarnation then return {home[1], home[2] or '0', 'same'} end
call('HSET', epoch_key, 'incarnation', incarnation)
return {home[1], home[2] or '0', 'moved'}
