#!lua flags=allow-oom
--- note_damaged: Puts up for repair runs that nobody can read.
--- KEYS epoch the partition's epoch
--- KEYS repair runs that wait for repair
--- ARGV epoch:str the epoch the caller knows
--- ARGV run{id:str}[] the runs
--- ERRS epoch_missing stale_epoch
--- RETURNS how many were not known yet
--- @include lib/fence
--- @include lib/now
local n = 0
for i = 1, n_run do n = n + call('ZADD', repair_key, 'NX', now, run(i)) end
return n
