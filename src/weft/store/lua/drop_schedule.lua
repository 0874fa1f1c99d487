#!lua flags=allow-oom
--- drop_schedule: Deletes a schedule with its timer. Runs it started go on.
--- KEYS epoch the partition's epoch
--- KEYS timers the due-index
--- KEYS schedules names of all schedules
--- KEYS schedule the schedule
--- ARGV epoch:str the epoch the caller knows
--- ERRS epoch_missing stale_epoch
--- RETURNS 1 when there was one
--- @include lib/fence
local name = string.match(schedule_key, ':schedule:(.+)$')
call('ZREM', timers_key, 'cron:' .. name)
call('SREM', schedules_key, name)
return call('DEL', schedule_key)
