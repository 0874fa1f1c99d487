#!lua
--- mail_run: Gives a workflow run a piece of mail: a signal, an update, a cancellation, or the end of a child; a run that waits goes on.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers a run that goes on has no timer any more; one whose deadline has passed ends a little later
--- KEYS queues names of queues in use
--- KEYS wake the wake key of its queue
--- KEYS wf.tasks the stream of its token
--- KEYS run the workflow run
--- KEYS mail what came for it
--- KEYS signals calls that were answered
--- KEYS updates[] the run's updates, when this is one
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who sends it
--- ARGV group:str consumer group
--- ARGV inbox:str prefix of the sessions' inboxes
--- ARGV header:str `<type> <key> <more>` of the entry
--- ARGV value:str msgpack: its value
--- ARGV event:str type of the event that tells of it
--- ARGV facts:str facts of that event
--- ARGV request:str a repeated call has the same one; empty: it may come twice
--- ARGV update:str id of an update; empty: it is none
--- ARGV watch:str channel that is told when the update is answered
--- ARGV grace_ms:int its deadline has passed: how long its code has to come to an end; 0: no such thing
--- ARGV most:int pieces of mail that may wait; 0: any number
--- ARGV remembered:int calls that are remembered
--- ERRS epoch_missing stale_epoch not_found
--- RETURNS `given`, `full`, `known` (an update that came before, or a deadline that was told), or `ended <status>`
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
local asked = update ~= '' and call('HGET', KEYS[updates_keys_at + 1], '=' .. update)
if asked then
  -- Somebody asks again who may listen elsewhere by now.
  if string.sub(asked, 1, 1) == '?' and #asked < 4000 and not string.find(asked, watch, 1, true) then
    call('HSET', KEYS[updates_keys_at + 1], '=' .. update, asked .. ' ' .. watch)
  end
  return 'known'
end
if flow.ended then return 'ended ' .. (flow.status or 'completed') end
if grace_ms > 0 then
  if not flow.deadline or tonumber(flow.deadline) > now_ms or call('HEXISTS', run_key, 'overdue') == 1 then return 'known' end
elseif most > 0 and call('LLEN', mail_key) >= most then
  return 'full'
end
if request ~= '' then
  local place = '@' .. string.format('%d', call('HINCRBY', signals_key, 'n', 1) % remembered)
  local oldest = call('HGET', signals_key, place)
  if oldest then call('HDEL', signals_key, '=' .. oldest) end
  call('HSET', signals_key, '=' .. request, 'given', place, request)
end
if update ~= '' then call('HSET', KEYS[updates_keys_at + 1], '=' .. update, '?' .. watch) end
if grace_ms > 0 then
  local over = string.format('%d', now_ms + grace_ms)
  call('HSET', run_key, 'overdue', over)
  call('ZADD', timers_key, over, 'deadline:' .. flow.id)
end
call('RPUSH', mail_key, now .. ' ' .. header .. '\n' .. value)
tell_of(flow, event, facts, value)
local at = write_log()
call('HSET', run_key, 'seq', flow.seq, 'more', point(flow.more, at), 'left', 1)
rouse(flow, wf_tasks_key, wake_key, group, inbox)
send_news()
return 'given'
