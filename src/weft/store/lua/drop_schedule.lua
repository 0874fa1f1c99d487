#!lua flags=allow-oom
--- drop_schedule: Deletes a schedule with its timer. Runs it started go on.
--- KEYS epoch the partition's epoch
--- KEYS log is told of the act
--- KEYS timers the due-index
--- KEYS schedules names of all schedules
--- KEYS schedule the schedule
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who acts for them
--- ARGV act:str what somebody does, for the audit
--- ERRS epoch_missing stale_epoch
--- RETURNS 1 when there was one
--- @include lib/fence
--- @include lib/now
--- @include lib/log
--- @include lib/act
--- @include lib/schedule
local name, before = string.match(schedule_key, ':schedule:(.+)$'), as_set()
call('ZREM', timers_key, 'cron:' .. name)
call('SREM', schedules_key, name)
local gone = call('DEL', schedule_key)
if gone == 1 then tell_act(1, act, before, '') end
write_log()
return gone
