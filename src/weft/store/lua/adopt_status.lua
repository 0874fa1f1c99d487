#!lua
--- adopt_status: Notes a task that runs elsewhere among the children of its parent, which lives in another partition.
--- KEYS epoch the partition's epoch
--- KEYS status_children the children of the parent
--- ARGV epoch:str the epoch the caller knows
--- ARGV task:str id of the child
--- ARGV keep_ms:int how long the children are kept from now on
--- ERRS epoch_missing stale_epoch
--- RETURNS 1 when it was not known there
--- @include lib/fence
--- @include lib/now
local added = call('ZADD', status_children_key, 'NX', now_ms, task)
call('PEXPIRE', status_children_key, keep_ms)
return added
