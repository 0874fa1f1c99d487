#!lua flags=allow-oom
--- acknowledge_runs: Notes on runs how safely the store keeps them, once that is known. Runs that are gone stay gone.
--- KEYS epoch the partition's epoch
--- KEYS run[] the runs
--- ARGV epoch:str the epoch the caller knows
--- ARGV level:str `fsync` or `replicated`
--- ERRS epoch_missing stale_epoch
--- RETURNS how many of them there are
--- @include lib/fence
local found = 0
for i = 1, n_run_keys do
  local run_key = KEYS[run_keys_at + i]
  if call('EXISTS', run_key) == 1 then
    call('HSET', run_key, 'kept', level)
    found = found + 1
  end
end
return found
