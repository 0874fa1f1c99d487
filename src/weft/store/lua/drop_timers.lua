#!lua flags=allow-oom
--- drop_timers: Removes timers that were due before a moment; one that was set anew since stays.
--- KEYS epoch the partition's epoch
--- KEYS timers the due-index
--- ARGV epoch:str the epoch the caller knows
--- ARGV seen_ms:int when the caller saw them due, before it looked at what they are for
--- ARGV item{member:str}[] the timers
--- ERRS epoch_missing stale_epoch
--- RETURNS how many were removed
--- @include lib/fence
local dropped = 0
for i = 1, n_item do
  local member = item(i)
  local due = call('ZSCORE', timers_key, member)
  -- Whoever is slow here, or was stopped, must not take away what a retry of the run has set meanwhile. A timer of this very
  -- millisecond might be such a one: it is still due at the next look.
  if due and tonumber(due) < seen_ms then dropped = dropped + call('ZREM', timers_key, member) end
end
return dropped
