#!lua flags=allow-oom
--- drop_holders: Takes slots of a gate from runs that do not have them any more, unless others have them by now.
--- KEYS epoch the partition's epoch
--- KEYS heirs who has a slot that is handed on
--- KEYS gate where the slots are
--- ARGV epoch:str the epoch the caller knows
--- ARGV name:str the gate's name
--- ARGV item{run:str}[] who had a slot; `>`: nobody knows who
--- ERRS epoch_missing stale_epoch
--- RETURNS how many slots were taken
--- @include lib/fence
local taken = 0
for i = 1, n_item do
  local run = item(i)
  local heir = call('HGET', heirs_key, name)
  if run == heir then
    call('HDEL', heirs_key, name)
    run = '>'
  elseif run == '>' and heir then
    run = '' -- somebody has it by now
  end
  taken = taken + call('ZREM', gate_key, run)
end
return taken
