#!lua
--- retry_graph: Opens an ended graph run again: forgets what some nodes gave, and opens the step that goes on from there.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for its deadline
--- KEYS queues names of queues in use
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph run first, then the steps the items point at
--- KEYS ledger[] its open steps
--- KEYS arrivals[] who has come to its joins
--- KEYS context[] what its nodes gave
--- KEYS belongings[] what goes with it
--- KEYS signals[] its signals
--- KEYS undo[] what can be undone
--- KEYS tasklog[] what its steps logged
--- KEYS items[] items of maps that may be undone
--- KEYS blob[] values that are still needed
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str who retries it
--- ARGV seq:int the newest event the caller saw
--- ARGV deadline_ms:int when the whole run fails, from now; 0: never
--- ARGV payload:str JSON: from where and why, for the log
--- ARGV item{op:str run:int name:str task:int queue:int spec:str wait:str refs:str priority:int fair:str}[] `forget`: what a node gave (name); `reset`: who has come to a join (name); `mark`: what a node gave in the iteration before; else see lib/follow
--- ERRS epoch_missing stale_epoch stale_controls not_found
--- RETURNS `retried`, `open` (it has not ended), `closing` (what it left is still put away), `moved` (somebody else retried it), `away` (what it left is in the archive alone) or `blob_gone`
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/due
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/emit
--- @include lib/gates
--- @include lib/effects
--- @include lib/follow
local run_key, context_key, arrivals_key = KEYS[run_keys_at + 1], KEYS[context_keys_at + 1], KEYS[arrivals_keys_at + 1]
local graph = {number = 1, id = run_of(run_key), opened = {}, marked = {}}
local got = call('HMGET', run_key, 'open', 'seq', 'more', 'ended', 'away')
if not got[1] then return redis.error_reply('WEFT not_found there is no run ' .. graph.id) end
if string.sub(got[1], 1, 1) ~= '=' then return 'open' end
if tonumber(got[2] or 1) ~= seq then return 'moved' end
if call('ZSCORE', timers_key, 'close:' .. graph.id) then return 'closing' end
-- Until then all that it left stands, by the server's own clock.
if got[5] and tonumber(got[5]) <= time[1] * 1000 + math.floor(time[2] / 1000) then return 'away' end
for b = 1, n_blob_keys do
  if call('EXISTS', KEYS[blob_keys_at + b]) == 0 then return 'blob_gone' end
end
for i = 1, n_item do
  local op, _, name = item(i)
  if op == 'forget' then
    call('HDEL', context_key, name)
  elseif op == 'reset' then
    call('HDEL', arrivals_key, name)
  else
    follow(graph, i)
  end
end
seq = seq + 1
note(graph.id, seq, 'retried', 'opened=' .. table.concat(graph.opened, ' '), payload)
for _, one in ipairs(graph.marked) do
  seq = seq + 1
  note(graph.id, seq, one[1], one[2], one[3])
end
local at = write_log()
call('HDEL', run_key, 'status', 'error', 'result', 'ended', 'watch', 'paused', 'deadline', 'failing', 'parked', 'away')
call('HINCRBY', run_key, 'lives', 1)
call('HSET', run_key, 'open', string.sub(got[1], 2), 'seq', seq, 'more', point(point(got[3], got[4]), at))
for _, key in ipairs({run_key, context_key, arrivals_key, KEYS[belongings_keys_at + 1], KEYS[signals_keys_at + 1], KEYS[undo_keys_at + 1], KEYS[tasklog_keys_at + 1]}) do
  call('PERSIST', key)
end
for i = 1, n_items_keys do call('PERSIST', KEYS[items_keys_at + i]) end
for b = 1, n_blob_keys do
  local blob_key = KEYS[blob_keys_at + b]
  call('PERSIST', blob_key)
  call('SADD', KEYS[belongings_keys_at + 1], 'blob ' .. string.match(blob_key, ':([^:]+)$'))
end
if deadline_ms > 0 then
  local due = string.format('%d', now_ms + deadline_ms)
  call('ZADD', timers_key, due, 'deadline:' .. graph.id)
  call('HSET', run_key, 'deadline', due)
  wake(KEYS[wake_keys_at + 1])
end
write_effects(at)
return 'retried'
