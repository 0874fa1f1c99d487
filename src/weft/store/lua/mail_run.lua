#!lua
--- mail_run: Gives a workflow run a piece of mail: a signal, a cancellation, or the end of a child; a run that waits goes on.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers a run that goes on has no timer any more
--- KEYS queues names of queues in use
--- KEYS wake the wake key of its queue
--- KEYS wf.tasks the stream of its token
--- KEYS run the workflow run
--- KEYS mail what came for it
--- KEYS signals calls that were answered
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who sends it
--- ARGV group:str consumer group
--- ARGV inbox:str prefix of the sessions' inboxes
--- ARGV header:str `<type> <key> <more>` of the entry
--- ARGV value:str msgpack: its value
--- ARGV event:str type of the event that tells of it
--- ARGV facts:str facts of that event
--- ARGV request:str a repeated call has the same one; empty: it may come twice
--- ARGV most:int pieces of mail that may wait
--- ARGV remembered:int calls that are remembered
--- ERRS epoch_missing stale_epoch not_found
--- RETURNS `given`, `full`, or `ended <status>`
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/flows
local flow = read_flow(run_key)
if not flow.open then return redis.error_reply('WEFT not_found there is no run ' .. run_of(run_key)) end
local known = request ~= '' and call('HGET', signals_key, '=' .. request)
if known then return known end
if flow.ended then return 'ended ' .. flow.status end
if call('LLEN', mail_key) >= most then return 'full' end
if request ~= '' then
  local place = '@' .. string.format('%d', call('HINCRBY', signals_key, 'n', 1) % remembered)
  local oldest = call('HGET', signals_key, place)
  if oldest then call('HDEL', signals_key, '=' .. oldest) end
  call('HSET', signals_key, '=' .. request, 'given', place, request)
end
call('RPUSH', mail_key, now .. ' ' .. header .. '\n' .. value)
tell_of(flow, event, facts, value)
local at = write_log()
call('HSET', run_key, 'seq', flow.seq, 'more', point(flow.more, at), 'left', 1)
rouse(flow, wf_tasks_key, wake_key, group, inbox)
send_news()
return 'given'
