#!lua flags=allow-oom
--- end_session: Takes a session out of the directory once it holds no token, and prunes its consumers.
--- KEYS epoch the partition's epoch
--- KEYS session the lease
--- KEYS sessions the directory of sessions
--- KEYS wf.tasks[] streams it may be a consumer of
--- ARGV epoch:str the epoch the caller knows
--- ARGV group:str consumer group
--- ARGV session:str session id
--- ARGV swept:int 1: by the sweeper, a tombstone stays; 0: by the session itself, the lease goes
--- ARGV tombstone_ms:int how long a swept session is remembered as dead
--- ERRS epoch_missing stale_epoch session_alive
--- RETURNS how many tokens it still holds; the session stays until that is 0
--- @include lib/fence
-- It may have come back since the sweeper looked: taken out of the directory alive, nobody would ever sweep it again.
if swept == 1 and call('GET', session_key) == 'alive' then return redis.error_reply('WEFT session_alive') end
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
  -- A sleeper that held nothing is told too: a claim of its own, sent as it wakes, would take tokens nobody looks for.
  if swept == 0 then call('DEL', session_key) else call('SET', session_key, 'dead', 'PX', tombstone_ms) end
end
return held
