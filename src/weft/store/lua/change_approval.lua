#!lua flags=allow-oom
--- change_approval: Changes an approval that is still as the caller read it: a vote, the decision, a reminder; what is decided goes on.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for reminders and timeouts
--- KEYS queues names of queues in use
--- KEYS wf.tasks the stream of steps that decide
--- KEYS approval the record
--- KEYS pending_approvals the index
--- KEYS wake[] the timers' wake key, then that of steps that decide
--- KEYS run[] the graph run, then the step
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who changes it
--- ARGV rev:str the revision the caller read
--- ARGV opened:str when it was asked that the caller read, in ms: a retry of the run asks anew, from the first revision on
--- ARGV digest:str what the caller was shown; empty: it decides nothing
--- ARGV due:str not before this moment, in ms; empty: at any
--- ARGV status:str its status from now on
--- ARGV state:str JSON: its state from now on
--- ARGV given:str msgpack: what its step is given; empty: it stays open
--- ARGV look_at:str when to look again, in ms; empty: not
--- ARGV item{word:str told:str}[] what the log tells
--- ERRS epoch_missing stale_epoch not_found
--- RETURNS `ok`, `again` (somebody was quicker), `changed` (it shows something else), `early`, or `ended` (its run has)
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/waits
local graph_key, step_key = KEYS[run_keys_at + 1], KEYS[run_keys_at + 2]
local run, id = run_of(graph_key), run_of(step_key)
local got = call('HMGET', approval_key, 'rev', 'digest', 'status', 'opened')
if not got[1] then return redis.error_reply('WEFT not_found there is no approval ' .. id) end
if got[1] ~= rev or got[4] ~= opened then return 'again' end
local graph = call('HMGET', graph_key, 'open', 'seq', 'more', 'watch')
local open = call('HGET', step_key, 'open') or ''
if not graph[1] or string.sub(graph[1], 1, 1) == '=' then return 'ended' end
if got[3] ~= 'pending' or not string.find(open, '^%d+:%?approval$') then return 'ended' end
if digest ~= '' and got[2] ~= digest then return 'changed' end
if due ~= '' and tonumber(due) > now_ms then return 'early' end
call('HSET', approval_key, 'rev', string.format('%d', rev + 1), 'status', status, 'state', state)
if given ~= '' then
  call('HSET', approval_key, 'decided', now)
  call('ZREM', pending_approvals_key, id)
  settle(graph_key, step_key, open, '+' .. given, wf_tasks_key, KEYS[wake_keys_at + 2])
elseif look_at ~= '' then
  call('ZADD', timers_key, look_at, 'wait:' .. id)
  call('HSET', step_key, 'due', look_at)
  wake(KEYS[wake_keys_at + 1])
else
  call('ZREM', timers_key, 'wait:' .. id)
  call('HDEL', step_key, 'due')
end
local seq, step = tonumber(graph[2] or 1), string.match(id, '/(.+)$')
for i = 1, n_item do
  local word, told = item(i)
  seq = seq + 1
  note(run, seq, word, 'step=' .. step, told)
  if graph[4] then tell(graph[4], run, word, told, false) end
end
local at = write_log()
if at ~= '' then call('HSET', graph_key, 'seq', seq, 'more', point(graph[3], at)) end
send_news()
return 'ok'
