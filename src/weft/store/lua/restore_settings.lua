#!lua flags=allow-oom
--- restore_settings: Writes what operators had set, and schedules, as the archive has them.
--- KEYS epoch the partition's epoch, with the version of the controls
--- KEYS controls what operators set
--- KEYS schedules names of schedules
--- KEYS timers schedules tick by it
--- KEYS schedule[] those the items point at
--- ARGV epoch:str the epoch under which the partition is rebuilt
--- ARGV item{op:str at:int name:str value:str}[] `control`: one thing that is set; `field`: a field of a schedule; `schedule`: its name, and when it ticks next
--- ERRS epoch_missing stale_epoch
--- RETURNS how many items there were
--- @include lib/rebuild
for i = 1, n_item do
  local op, at, name, value = item(i)
  if op == 'control' then
    call('HSET', controls_key, name, value)
    -- A version that nobody knows: everybody reads them anew.
    call('HSET', epoch_key, 'controls', epoch)
  elseif op == 'field' then
    call('HSET', KEYS[schedule_keys_at + at], name, value)
  elseif op == 'schedule' then
    call('SADD', schedules_key, name)
    if value ~= '' then call('ZADD', timers_key, value, 'cron:' .. name) end
  end
end
return n_item
