#!lua flags=no-writes
--- read_timers: Lists what is due, without changing anything.
--- KEYS epoch the partition's epoch
--- KEYS timers the due-index
--- ARGV epoch:str the epoch the caller knows
--- ARGV limit:int how many at most
--- ERRS epoch_missing stale_epoch
--- RETURNS now_ms, the earliest due time that is still to come (empty: none), then the due members
--- @include lib/fence
--- @include lib/now
local due = call('ZRANGE', timers_key, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)
local coming = call('ZRANGE', timers_key, '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
return {now, coming[2] or '', unpack(due)}
