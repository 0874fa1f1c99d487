#!lua flags=allow-oom
--- put_schedule: Writes fields of a schedule that is still at the revision the caller read, and sets or drops its timer.
--- KEYS epoch the partition's epoch
--- KEYS log is told of the act
--- KEYS timers the due-index
--- KEYS schedules names of all schedules
--- KEYS schedule the schedule
--- KEYS wake[] the timers' wake key
--- ARGV epoch:str the epoch the caller knows
--- ARGV rev:str the revision the caller read; 0: there must be no such schedule
--- ARGV due:str when its timer is due, in ms; empty: it has none
--- ARGV by:str who acts for them
--- ARGV act:str what somebody does, for the audit; empty: nobody does
--- ARGV item{field:str value:str}[] fields to write, `-` in front: to remove; none: only the timer is set right
--- ERRS epoch_missing stale_epoch
--- RETURNS 1 when it was written, 0 when somebody changed it in between
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/log
--- @include lib/act
--- @include lib/schedule
if (call('HGET', schedule_key, 'rev') or '0') ~= rev then return 0 end
local name, before = string.match(schedule_key, ':schedule:(.+)$'), as_set()
for i = 1, n_item do
  local field, value = item(i)
  if string.sub(field, 1, 1) == '-' then call('HDEL', schedule_key, string.sub(field, 2))
  else call('HSET', schedule_key, field, value) end
end
if n_item > 0 then
  -- Begun with the time: a schedule that is deleted and made anew must not come by a revision that somebody still holds.
  call('HSET', schedule_key, 'rev', rev == '0' and now or string.format('%d', rev + 1))
  call('SADD', schedules_key, name)
end
if due == '' then
  call('ZREM', timers_key, 'cron:' .. name)
else
  call('ZADD', timers_key, due, 'cron:' .. name)
  wake(KEYS[wake_keys_at + 1])
end
tell_act(1, act, before, as_set())
write_log()
return 1
