#!lua flags=allow-oom
--- close_partition: Closes a partition that is to be rebuilt: nothing that writes is served until it is opened again.
--- KEYS epoch the partition's epoch
--- ARGV epoch:str the epoch it gets when it is opened again
--- RETURNS `closed`, or `newer` (it is at that epoch or a later one)
local home = call('HMGET', epoch_key, 'number', 'recovering')
if tonumber(home[1] or 0) >= tonumber(epoch) or tonumber(home[2] or 0) > tonumber(epoch) then return 'newer' end
call('HDEL', epoch_key, 'number', 'behind')
call('HSET', epoch_key, 'recovering', epoch)
return 'closed'
