#!lua flags=allow-oom
--- park_step: Lets a claimed step of a graph run wait for something from outside: its token goes, and nothing is in its place.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for timeouts and reminders
--- KEYS wake the timers' wake key
--- KEYS wf.tasks the stream of its token
--- KEYS run[] the graph run, then the step
--- KEYS signals[] signals of the run, for a step that waits for one
--- KEYS approval[] the record, for an approval
--- KEYS pending_approvals[] the index, for an approval
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV ledger:str the ledger of the step's token
--- ARGV kind:str what it waits for: `signal:<name>` or `approval`
--- ARGV wait_ms:int when it is looked at again, from now; 0: never
--- ARGV told:str JSON: what the event tells besides
--- ARGV item{field:str value:str}[] fields of the approval's record
--- ERRS epoch_missing stale_epoch
--- RETURNS `parked`, `given` (what it waits for is there: the token stays the caller's), `stale`, or `gone` (its run has ended)
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/signals
local graph_key, step_key = KEYS[run_keys_at + 1], KEYS[run_keys_at + 2]
local graph = call('HMGET', graph_key, 'open', 'seq', 'more', 'watch', 'approvals')
local got = call('HMGET', step_key, 'open', 'given')
local run, id = run_of(graph_key), run_of(step_key)
local step, name = string.match(id, '/(.+)$'), string.match(kind, '^signal:(.+)$')
if got[1] ~= ledger then return 'stale' end
if not graph[1] or string.sub(graph[1], 1, 1) == '=' then return 'gone' end
if got[2] then return 'given' end
local signals = name and KEYS[signals_keys_at + 1]
local early = name and take_signal(signals, name)
if early then
  call('HSET', step_key, 'given', '+' .. early)
  return 'given'
end
local delivery, token = string.match(ledger, '^(%d+):(.+)$')
if call('XACK', wf_tasks_key, group, token) == 0 then return 'stale' end
call('XDEL', wf_tasks_key, token)
call('HSET', step_key, 'open', delivery .. ':?' .. kind, 'status', 'waiting')
if wait_ms > 0 then
  local due = string.format('%d', now_ms + wait_ms)
  call('HSET', step_key, 'due', due)
  call('ZADD', timers_key, due, 'wait:' .. id)
  wake(wake_key)
end
if name then
  local others = call('HGET', signals, '?' .. name)
  call('HSET', signals, '?' .. name, others and others .. ' ' .. step or step)
else
  local record = KEYS[approval_keys_at + 1]
  -- What an earlier life of the run asked, before it was retried, expires: nothing of it may go with what is asked now.
  call('DEL', record)
  for i = 1, n_item do call('HSET', record, item(i)) end
  call('HSET', record, 'status', 'pending', 'rev', 1, 'opened', now)
  call('ZADD', KEYS[pending_approvals_keys_at + 1], now, id)
  call('HSET', graph_key, 'approvals', graph[5] and graph[5] .. ' ' .. step or step)
end
local seq = (graph[2] or 1) + 1
note(run, seq, 'step_waiting', 'step=' .. step .. ',waits=' .. kind, told)
local at = write_log()
call('HSET', graph_key, 'seq', seq, 'more', point(graph[3], at))
call('HINCRBY', graph_key, 'parked', 1)
if graph[4] then tell(graph[4], run, 'step_waiting', told, false) end
send_news()
return 'parked'
