#!lua
--- start_runs: Accepts runs: each gets its hash, its first event, and a token in its queue or a timer.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for delays and deadlines
--- KEYS queues names of queues in use
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item
--- KEYS blob[] staged inputs the items point at
--- KEYS idempotency[] records the items point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who starts them
--- ARGV item{spec:str task:str queue:str delay_ms:str deadline_ms:str blob:str key:str digest:str window_ms:str}[] one per run
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `started`, `exists` (a repeated call), `blob_gone`, `joined <run>` or `conflict <run>`
--- @include lib/fence
--- @include lib/now
--- @include lib/due
--- @include lib/wake
--- @include lib/log
--- @include lib/emit
local reply, fresh, queues = {}, {}, {}
for i = 1, n_item do
  local spec, _, _, _, _, blob, key, digest, window_ms = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = run_of(run_key)
  local state = 'started'
  if blob ~= '0' and call('EXISTS', KEYS[blob_keys_at + blob]) == 0 then state = 'blob_gone' end
  if key ~= '0' and state == 'started' then
    -- The record is written here, before the runs: two items of one call may carry the same key.
    local record_key = KEYS[idempotency_keys_at + key]
    local held = call('SET', record_key, run .. ' ' .. digest, 'NX', 'GET', 'PX', window_ms)
    if held then
      local first, first_digest = string.match(held, '^(%S+) (%S+)$')
      if first == run then state = 'exists'
      else state = (first_digest == digest and 'joined ' or 'conflict ') .. first end
    end
  end
  if state == 'started' and call('EXISTS', run_key) == 1 then state = 'exists' end
  if state == 'started' then
    fresh[#fresh + 1] = i
    note(run, 1, 'queued', '', spec)
  end
  reply[i] = state
end
local born = write_log()
for _, i in ipairs(fresh) do
  local spec, task, queue, delay_ms, deadline_ms, blob = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = run_of(run_key)
  local open
  local due_ms = delay_ms == '0' and 0 or due_of(delay_ms)
  if due_ms > now_ms then
    local due = string.format('%d', due_ms)
    call('ZADD', timers_key, due, 'open:' .. run)
    open = '1:@' .. due
    queues['1'] = true
  else
    open = '1:' .. emit(KEYS[wf_tasks_keys_at + task], run, spec, 1, 1)
    queues[queue] = true
  end
  if deadline_ms ~= '0' then
    local due = string.format('%d', now_ms + deadline_ms)
    call('ZADD', timers_key, due, 'deadline:' .. run)
    call('HSET', run_key, 'spec', spec, 'open', open, 'born', born, 'deadline', due)
    queues['1'] = true
  else
    call('HSET', run_key, 'spec', spec, 'open', open, 'born', born)
  end
  if blob ~= '0' then call('PERSIST', KEYS[blob_keys_at + blob]) end
end
for queue in pairs(queues) do
  local wake_key = KEYS[wake_keys_at + queue]
  wake(wake_key)
  if queue ~= '1' then call('SADD', queues_key, id_of(wake_key, ':wake:')) end
end
return reply
