#!lua flags=allow-oom
--- fire_timers: Emits the tokens that are due, each once; verifies every timer again before it fires.
--- KEYS epoch the partition's epoch
--- KEYS timers the due-index
--- KEYS queues names of queues in use
--- KEYS wake[] one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item
--- ARGV epoch:str the epoch the caller knows
--- ARGV item{task:int queue:int}[] where each run's token goes
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `fired`, `early` or `gone`
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/emit
local reply = {}
for i = 1, n_item do
  local task, queue = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = string.match(run_key, '[^:]+$')
  local got = call('HMGET', run_key, 'open', 'spec', 'attempt')
  local delivery, due = string.match(got[1] or '', '^(%d+):@(%d+)$')
  if not delivery then
    call('ZREM', timers_key, 'open:' .. run)
    reply[i] = 'gone'
  elseif tonumber(due) > now_ms then
    reply[i] = 'early'
  else
    local token = emit(KEYS[wf_tasks_keys_at + task], run, got[2], tonumber(delivery), got[3] or 1)
    call('ZREM', timers_key, 'open:' .. run)
    call('HSET', run_key, 'open', delivery .. ':' .. token)
    call('HDEL', run_key, 'status')
    local wake_key = KEYS[wake_keys_at + queue]
    wake(wake_key)
    call('SADD', queues_key, string.match(wake_key, ':wake:(.+)$'))
    reply[i] = 'fired'
  end
end
return reply
