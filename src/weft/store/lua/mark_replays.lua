#!lua flags=allow-oom
--- mark_replays: Notes in dead letters that they were replayed, once the new runs are started; one caller per replay wins.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS run[] the dead letters, one per item
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who acts for them
--- ARGV item{fresh:str act:str}[] the id that was reserved, and what somebody does, for the audit
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `marked`, or `taken` when another caller was faster
--- @include lib/fence
--- @include lib/now
--- @include lib/names
--- @include lib/log
--- @include lib/act
local reply = {}
for i = 1, n_item do
  local run_key, fresh, act = KEYS[run_keys_at + i], item(i)
  if call('HGET', run_key, 'replaying') == fresh then
    tell_act(i, act, call('HGET', run_key, 'replayed') or '', fresh)
    local seq = call('HINCRBY', run_key, 'seq', 1)
    call('HSET', run_key, 'replayed', fresh)
    call('HDEL', run_key, 'replaying')
    note(run_of(run_key), text[seq], 'replayed', 'run=' .. fresh, '')
    reply[i] = 'marked'
  else
    reply[i] = 'taken'
  end
end
local at = write_log()
for i = 1, n_item do
  local run_key = KEYS[run_keys_at + i]
  if reply[i] == 'marked' then call('HSET', run_key, 'more', point(call('HGET', run_key, 'more'), at)) end
end
return reply
