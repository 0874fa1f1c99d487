#!lua
--- hedge_items: Starts items of a map a second time that have run for long: each gets a copy, once.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for gates that open later
--- KEYS queues names of queues in use
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS map the map
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph run first, then per item the item's and its copy's
--- KEYS ledger[] the open steps of the graph run
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str who starts them
--- ARGV item{name:str ledger:str run:int copy:int task:int queue:int refs:str priority:int fair:str}[] name of the copy's step; ledger: the item's, as the caller saw it; run and copy: their keys; where the copy's token goes, and the gates before it
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS per item: `started`, `done` (it has a copy), `stale` (it has ended or gone on otherwise) or `over` (its map or its run is)
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/due
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/gates
--- @include lib/effects
local run_key, reply, n = KEYS[run_keys_at + 1], {}, 0
local graph = {number = 1, id = run_of(run_key), opened = {}}
local got = call('HMGET', run_key, 'open', 'seq', 'watch', 'more', 'failing')
local live = got[1] and string.sub(got[1], 1, 1) ~= '=' and not got[5] and call('EXISTS', map_key) == 1
  and call('HEXISTS', map_key, 'over') == 0
local seq = tonumber(got[2] or 1)
for i = 1, n_item do
  local name, ledger, r, copy, task, queue, refs, priority, fair = item(i)
  local item_key = KEYS[run_keys_at + r]
  local was = call('HMGET', item_key, 'open', 'spec', 'copied', 'attempt')
  if not live then
    reply[i] = 'over'
  elseif was[1] ~= ledger then
    reply[i] = 'stale'
  elseif was[3] then
    reply[i] = 'done'
  else
    -- An item is started a second time once: what stands in its hash outlives a copy that failed.
    call('HSET', item_key, 'copied', now)
    open_step(graph, copy, name, task, queue, was[2], '0', refs, priority, fair)
    n, seq = n + 1, seq + 1
    note(graph.id, seq, 'step_hedged', 'step=' .. string.sub(name, 1, -2) .. ',attempt=' .. (was[4] or '1'), '')
    if got[3] then tell(got[3], graph.id, 'step_hedged', '', false) end
    reply[i] = 'started'
  end
end
if n > 0 then
  local at = write_log()
  call('HINCRBY', map_key, 'copies', n)
  call('HSET', run_key, 'seq', seq, 'more', point(got[4], at))
  write_effects(at)
  send_news()
end
return reply
