#!lua flags=allow-oom
--- expire_wait: Ends the waiting of a step whose signal did not come in time. A signal that came first has won.
--- KEYS epoch the partition's epoch
--- KEYS timers the due-index
--- KEYS queues names of queues in use
--- KEYS wake the wake key of steps that decide
--- KEYS wf.tasks the stream of steps that decide
--- KEYS signals signals of the run
--- KEYS run[] the graph run, then the step
--- ARGV epoch:str the epoch the caller knows
--- ERRS epoch_missing stale_epoch
--- RETURNS `expired`, `early`, or `gone` (it does not wait)
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/emit
--- @include lib/waits
--- @include lib/signals
local graph_key, step_key = KEYS[run_keys_at + 1], KEYS[run_keys_at + 2]
local got, id = call('HMGET', step_key, 'open', 'due'), run_of(step_key)
local name = string.match(got[1] or '', '^%d+:%?signal:(.+)$')
if not name then
  call('ZREM', timers_key, 'wait:' .. id)
  return 'gone'
end
if not got[2] or tonumber(got[2]) > now_ms then return 'early' end
leave_line(signals_key, name, string.match(id, '/(.+)$'))
settle(graph_key, step_key, got[1], '-', wf_tasks_key, wake_key)
return 'expired'
