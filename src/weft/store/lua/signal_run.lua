#!lua
--- signal_run: Gives a graph run a signal: to the step that has waited for it longest, or kept until one does.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers a step that is given its signal has no timeout any more
--- KEYS queues names of queues in use
--- KEYS wake the wake key of steps that decide
--- KEYS wf.tasks the stream of steps that decide
--- KEYS signals signals of the run
--- KEYS run[] the graph run, then the step the caller saw waiting, if there was one
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who signals
--- ARGV name:str the signal's name
--- ARGV value:str msgpack: its value
--- ARGV step:str the step the caller saw waiting; empty: none
--- ARGV request:str a repeated call has the same one; the log tells it
--- ARGV most:int signals of one name that may be kept
--- ARGV remembered:int calls that are remembered
--- ERRS epoch_missing stale_epoch not_found
--- RETURNS `given <step>`, `kept`, `again <step>` (another one waits, or none), `full`, or `ended <status>`
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/waits
--- @include lib/signals
local graph_key = KEYS[run_keys_at + 1]
local run = run_of(graph_key)
local graph = call('HMGET', graph_key, 'open', 'seq', 'more', 'watch', 'status')
if not graph[1] then return redis.error_reply('WEFT not_found there is no run ' .. run) end
local known = call('HGET', signals_key, '=' .. request)
if known then return known end
if string.sub(graph[1], 1, 1) == '=' then return 'ended ' .. (graph[5] or 'completed') end
local first = string.match(call('HGET', signals_key, '?' .. name) or '', '^%S+') or ''
if first ~= step then return 'again ' .. first end
local answer
if first == '' then
  local from, after = string.match(call('HGET', signals_key, '#' .. name) or '1 1', '^(%d+) (%d+)$')
  if after - from >= most then return 'full' end
  call('HSET', signals_key, '+' .. name .. ' ' .. after, value, '#' .. name, string.format('%s %d', from, after + 1))
  answer = 'kept'
else
  local step_key = KEYS[run_keys_at + 2]
  local open = call('HGET', step_key, 'open') or ''
  leave_line(signals_key, name, first)
  -- It does not wait any more: somebody ended it without telling the line.
  if string.match(open, '^%d+:%?signal:(.+)$') ~= name then
    return 'again ' .. (string.match(call('HGET', signals_key, '?' .. name) or '', '^%S+') or '')
  end
  settle(graph_key, step_key, open, '+' .. value, wf_tasks_key, wake_key)
  answer = 'given ' .. first
end
local n = call('HINCRBY', signals_key, 'n', 1)
local place = '@' .. string.format('%d', n % remembered)
local oldest = call('HGET', signals_key, place)
if oldest then call('HDEL', signals_key, '=' .. oldest) end
call('HSET', signals_key, '=' .. request, answer, place, request)
local seq = (graph[2] or 1) + 1
local facts = 'name=' .. name .. ',request=' .. request
if first ~= '' then facts = facts .. ',step=' .. first end
note(run, seq, 'signalled', facts, value)
local at = write_log()
call('HSET', graph_key, 'seq', seq, 'more', point(graph[3], at))
if graph[4] then tell(graph[4], run, 'signalled', value, false) end
send_news()
return answer
