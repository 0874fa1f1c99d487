#!lua flags=allow-oom
--- restore_runs: Writes unfinished runs as the archive has them, each with a timer that opens it, and the records that runs stand behind.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers every restored run goes on by one, through its gates
--- KEYS run[] one per item
--- KEYS idempotency[] records the items point at
--- KEYS unique[] records of calls that count as one, the items point at
--- ARGV epoch:str the epoch under which the partition is rebuilt
--- ARGV by:str who restores them
--- ARGV item{spec:str seq:int delivery:int attempt:int due_ms:int born:str deadline_ms:int crashes:int error:str progress:str waits:int key:int same:str unique:int record_ms:str}[] one per run; spec: empty for one that has ended, of which only the records are written; waits: 1 if it waits for a back-off or because it put itself off; same: digest of the payload, for the record
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `restored`, `exists` or `record`
--- @include lib/rebuild
--- @include lib/now
--- @include lib/names
--- @include lib/log
local reply, fresh = {}, {}
for i = 1, n_item do
  local spec, seq, _, _, _, _, _, _, _, _, _, key, same, unique, record_ms = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = run_of(run_key)
  if key > 0 then call('SET', KEYS[idempotency_keys_at + key], run .. ' ' .. same, 'NX', 'PX', record_ms) end
  if unique > 0 then call('SET', KEYS[unique_keys_at + unique], run, 'NX', 'PX', record_ms) end
  if spec == '' then
    reply[i] = 'record'
  elseif call('EXISTS', run_key) == 1 then
    reply[i] = 'exists'
  else
    reply[i] = 'restored'
    fresh[#fresh + 1] = i
    note(run, text[seq + 1], 'recovered', 'epoch=' .. epoch, '')
  end
end
local at = write_log()
for _, i in ipairs(fresh) do
  local spec, seq, delivery, attempt, due_ms, born, deadline_ms, crashes, error, progress, waits = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = run_of(run_key)
  local due = text[math.max(due_ms, now_ms)]
  -- A delivery of its own: whoever held it before the loss is refused.
  call('HSET', run_key, 'spec', spec, 'open', text[delivery + 1] .. ':@' .. due, 'born', born, 'seq', text[seq + 1], 'more', at)
  if attempt > 1 then call('HSET', run_key, 'attempt', text[attempt]) end
  if crashes > 0 then call('HSET', run_key, 'crashes', text[crashes]) end
  if error ~= '' then call('HSET', run_key, 'error', error) end
  if progress ~= '' then call('HSET', run_key, 'progress', progress) end
  if due_ms > now_ms then
    if waits == 1 then call('HSET', run_key, 'status', 'waiting') else call('HSET', run_key, 'promised', '1') end
  end
  call('ZADD', timers_key, due, 'open:' .. run)
  if deadline_ms > 0 then
    call('HSET', run_key, 'deadline', text[deadline_ms])
    call('ZADD', timers_key, text[deadline_ms], 'deadline:' .. run)
  end
end
return reply
