#!lua flags=allow-oom
--- close_approvals: Notes that approvals of an ended run will not be decided any more; nothing happens to those of a run that was opened again meanwhile.
--- KEYS epoch the partition's epoch
--- KEYS run the run
--- KEYS pending_approvals the index
--- KEYS approval[] the records
--- ARGV epoch:str the epoch the caller knows
--- ARGV seq:int the newest event of the ended run that the caller saw; 0: however the run stands
--- ERRS epoch_missing stale_epoch
--- RETURNS how many were open
--- @include lib/fence
--- @include lib/names
if seq > 0 then
  local got = call('HMGET', run_key, 'open', 'seq')
  if not got[1] or string.sub(got[1], 1, 1) ~= '=' or tonumber(got[2] or 1) ~= seq then return 0 end
end
local closed = 0
for i = 1, n_approval_keys do
  local key = KEYS[approval_keys_at + i]
  if call('HGET', key, 'status') == 'pending' then
    call('HSET', key, 'status', 'cancelled')
    closed = closed + 1
  end
  call('ZREM', pending_approvals_key, id_of(key, ':approval:'))
end
return closed
