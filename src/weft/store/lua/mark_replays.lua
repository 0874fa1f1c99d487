#!lua flags=allow-oom
--- mark_replays: Notes in dead letters that they were replayed, once the new runs are started; one caller per replay wins.
--- KEYS epoch the partition's epoch
--- KEYS run[] the dead letters, one per item
--- ARGV epoch:str the epoch the caller knows
--- ARGV item{fresh:str}[] the id that was reserved
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `marked`, or `taken` when another caller was faster
--- @include lib/fence
local reply = {}
for i = 1, n_item do
  local run_key, fresh = KEYS[run_keys_at + i], item(i)
  if call('HGET', run_key, 'replaying') == fresh then
    call('HSET', run_key, 'replayed', fresh)
    call('HDEL', run_key, 'replaying')
    reply[i] = 'marked'
  else
    reply[i] = 'taken'
  end
end
return reply
