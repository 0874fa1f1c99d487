#!lua flags=allow-oom
--- restore_graph: Writes a graph run as its events tell it, and opens the step that goes on from there; or ends it, for somebody to retry.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for its deadline
--- KEYS queues names of queues in use
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph run first, then the step the items point at
--- KEYS ledger[] its open steps
--- KEYS arrivals[] who has come to its joins
--- KEYS context[] what its nodes gave
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch under which the partition is rebuilt
--- ARGV by:str who restores it
--- ARGV spec:str msgpack: what was asked for
--- ARGV seq:int the newest event that is archived
--- ARGV born:str when the log told of its first event, in ms
--- ARGV definition:str digest of the definition it follows
--- ARGV revision:int how often that was changed, from 1
--- ARGV deadline_ms:int when the whole run fails, in ms; 0: never
--- ARGV error:str msgpack: why it ends; empty: it goes on
--- ARGV keep_ms:int how long it is kept then
--- ARGV item{op:str run:int name:str task:int queue:int spec:str wait:str refs:str priority:int fair:str}[] `given`: what a node gave (name, spec); else see lib/follow
--- ERRS epoch_missing stale_epoch
--- RETURNS `restored` or `exists`
--- @include lib/rebuild
--- @include lib/now
--- @include lib/due
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/emit
--- @include lib/gates
--- @include lib/effects
--- @include lib/follow
local run_key, context_key = KEYS[run_keys_at + 1], KEYS[context_keys_at + 1]
local graph = {number = 1, id = run_of(run_key), opened = {}, marked = {}}
if call('EXISTS', run_key) == 1 then return 'exists' end
for i = 1, n_item do
  local op, _, name, _, _, value = item(i)
  if op == 'given' then
    call('HSET', context_key, name, value)
  else
    follow(graph, i)
  end
end
if error ~= '' then
  note(graph.id, text[seq + 1], 'failed', '', error)
else
  note(graph.id, text[seq + 1], 'recovered', 'epoch=' .. epoch .. ',opened=' .. table.concat(graph.opened, ' '), '')
end
local at = write_log()
call('HSET', run_key, 'spec', spec, 'open', error ~= '' and '=1:*' or '1:*', 'born', born, 'seq', text[seq + 1], 'more', at, 'def', definition)
if revision > 1 then call('HSET', run_key, 'revision', text[revision]) end
if error ~= '' then
  call('HSET', run_key, 'status', 'failed', 'error', error, 'ended', at)
  for _, key in ipairs({run_key, context_key}) do call('PEXPIRE', key, keep_ms) end
elseif deadline_ms > 0 then
  call('HSET', run_key, 'deadline', text[deadline_ms])
  call('ZADD', timers_key, text[deadline_ms], 'deadline:' .. graph.id)
end
write_effects(at)
return 'restored'
