#!lua
--- start_graph: Accepts a graph run: its hash, its first event, its definition, and the steps it begins with.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for delays and deadlines
--- KEYS queues names of queues in use
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS definitions notes that they are needed
--- KEYS ir[] the definition, shared by all its runs, and those that its subgraphs follow
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph run first, then the steps the items point at, and its parent's
--- KEYS ledger[] its open steps
--- KEYS arrivals[] who has come to its joins
--- KEYS context[] what its nodes gave
--- KEYS belongings[] what goes with it: the large values it begins with
--- KEYS blob[] its input, when it is a blob, and large values it begins with
--- KEYS idempotency[] the record of its key, when it has one
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str who starts it
--- ARGV spec:str msgpack: what was asked for
--- ARGV definition:str JSON: the definition; empty: the store has it
--- ARGV deadline_ms:int when the whole run fails, from now; 0: never
--- ARGV keep_ms:int how long a run that ends at once is kept
--- ARGV digest:str digest of the payload, for the record
--- ARGV window_ms:str how long the record is kept
--- ARGV parent:int number of the step that this run is a subgraph of; 0: none
--- ARGV parent_open:str the ledger which that step must have
--- ARGV watch:str a channel told when the run ends; empty: none
--- ARGV result:str msgpack: the result of a run that has nothing to do; empty: it has
--- ARGV lone:int 1: what it begins with is one plain step, which stands alone in its hash (see lib/lone)
--- ARGV item{op:str run:int name:str task:int queue:int spec:str wait:str refs:str priority:int fair:str}[] what it begins with, see lib/follow
--- ERRS epoch_missing stale_epoch stale_controls archive_behind
--- RETURNS `started`, `exists` (a repeated call), `no_definition` (the store does not have it), `orphaned` (its parent's step is over), `blob_gone`, `joined <run>` or `conflict <run>`
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
-- A subgraph is part of a run that was accepted before.
if home[4] and parent == 0 then return redis.error_reply('WEFT archive_behind ' .. home[4]) end
local run_key = KEYS[run_keys_at + 1]
local graph = {number = 1, id = run_of(run_key), opened = {}, marked = {}}
for b = 1, n_blob_keys do
  if call('EXISTS', KEYS[blob_keys_at + b]) == 0 then return 'blob_gone' end
end
for d = definition == '' and 1 or 2, n_ir_keys do
  if call('EXISTS', KEYS[ir_keys_at + d]) == 0 then return 'no_definition' end
end
for k = 1, n_idempotency_keys do
  local held = call('SET', KEYS[idempotency_keys_at + k], graph.id .. ' ' .. digest, 'NX', 'GET', 'PX', window_ms)
  if held then
    local first, first_digest = string.match(held, '^(%S+) (%S+)$')
    if first ~= graph.id then return (first_digest == digest and 'joined ' or 'conflict ') .. first end
  end
end
if call('EXISTS', run_key) == 1 then return 'exists' end
-- A step that was ended meanwhile must not leave a child behind.
if parent > 0 and call('HGET', KEYS[run_keys_at + parent], 'open') ~= parent_open then return 'orphaned' end
if definition ~= '' then call('SET', KEYS[ir_keys_at + 1], definition, 'NX') end
for d = 1, n_ir_keys do call('HSET', definitions_key, id_of(KEYS[ir_keys_at + d], ':ir:'), 0) end
local of_whom = parent > 0 and 'parent=' .. run_of(KEYS[run_keys_at + parent]) or ''
note(graph.id, '1', 'queued', n_idempotency_keys > 0 and 'same=' .. digest or of_whom, spec)
local alone, task, queue, asked, _
if lone == 1 then
  _, _, alone, task, queue, asked = item(1)
  graph.opened[1] = alone
  note(graph.id .. '/' .. alone, '1', 'queued', '', asked)
else
  for i = 1, n_item do follow(graph, i) end
end
local seq = 1
if #graph.opened > 0 then
  seq = 2
  note(graph.id, '2', 'routed', 'opened=' .. table.concat(graph.opened, ' ') .. traced(graph), '')
end
for _, one in ipairs(graph.marked) do
  seq = seq + 1
  note(graph.id, seq, one[1], one[2], one[3])
end
local ends = #graph.opened == 0
if ends then
  seq = seq + 1
  note(graph.id, seq, 'completed', '', result)
end
local born = write_log()
write_effects(born)
call('HSET', run_key, 'spec', spec, 'open', ends and '=1:*' or '1:*', 'born', born, 'seq', seq, 'def', id_of(KEYS[ir_keys_at + 1], ':ir:'))
if lone == 1 then
  local token = emit(KEYS[wf_tasks_keys_at + task], graph.id .. '/' .. alone, asked, 1, 1)
  call('HSET', run_key, 'lone', alone .. ' 1:' .. token .. ' ' .. born .. ' ' .. asked)
  wake(KEYS[wake_keys_at + queue])
  call('SADD', queues_key, id_of(KEYS[wake_keys_at + queue], ':wake:'))
end
if watch ~= '' then call('HSET', run_key, 'watch', watch) end
if parent > 0 then call('HSET', run_key, 'parent', run_of(KEYS[run_keys_at + parent])) end
for b = 1, n_blob_keys do
  local blob_key = KEYS[blob_keys_at + b]
  call('PERSIST', blob_key)
  call('SADD', KEYS[belongings_keys_at + 1], 'blob ' .. string.match(blob_key, ':([^:]+)$'))
end
if ends then
  call('HSET', run_key, 'status', 'completed', 'result', result, 'ended', born)
  for _, key in ipairs({run_key, KEYS[context_keys_at + 1]}) do call('PEXPIRE', key, keep_ms) end
  for b = 1, n_blob_keys do call('PEXPIRE', KEYS[blob_keys_at + b], keep_ms) end
elseif deadline_ms > 0 then
  local due = string.format('%d', now_ms + deadline_ms)
  call('ZADD', timers_key, due, 'deadline:' .. graph.id)
  call('HSET', run_key, 'deadline', due)
  wake(KEYS[wake_keys_at + 1])
end
return 'started'
