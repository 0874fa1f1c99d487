#!lua flags=allow-oom
--- end_session: Takes a session out of the directory once it holds no token, and prunes its consumers.
--- KEYS epoch the partition's epoch
--- KEYS session the lease
--- KEYS sessions the directory of sessions
--- KEYS wf.tasks[] streams it may be a consumer of
--- ARGV epoch:str the epoch the caller knows
--- ARGV group:str consumer group
--- ARGV session:str session id
--- ARGV swept:int 1: by the sweeper, the tombstone stays; 0: by the session itself, the lease goes
--- ERRS epoch_missing stale_epoch
--- RETURNS how many tokens it still holds; the session stays until that is 0
--- @include lib/fence
local held = 0
for s = 1, n_wf_tasks_keys do
  local stream = KEYS[wf_tasks_keys_at + s]
  local pending = pcall('XPENDING', stream, group, '-', '+', 1, session)
  if not pending.err then
    if pending[1] then held = held + 1 else call('XGROUP', 'DELCONSUMER', stream, group, session) end
  end
end
if held == 0 then
  call('HDEL', sessions_key, session)
  if swept == 0 then call('DEL', session_key) end
end
return held
