#!lua flags=allow-oom
--- forget_unique: Removes the record of a call that no longer waits, unless it names another one by now.
--- KEYS epoch the partition's epoch
--- KEYS unique the record
--- ARGV epoch:str the epoch the caller knows
--- ARGV run:str the run it named
--- ERRS epoch_missing stale_epoch
--- RETURNS `1` when it was removed
--- @include lib/fence
if call('GET', unique_key) ~= run then return 0 end
return call('DEL', unique_key)
