#!lua flags=allow-oom
--- forget_unique: Removes the record of a call that no longer waits, unless it names another one by now.
--- KEYS epoch the partition's epoch
--- KEYS unique the record
--- ARGV epoch:str the epoch the caller knows
--- ARGV run:str the run it named
--- ARGV after_ms:int how long it stays all the same
--- ERRS epoch_missing stale_epoch
--- RETURNS `1` when it was removed, or will be
--- @include lib/fence
if call('GET', unique_key) ~= run then return 0 end
if after_ms > 0 then return call('PEXPIRE', unique_key, after_ms) end
return call('DEL', unique_key)
