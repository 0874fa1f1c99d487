#!lua
--- patch_graph: Gives a graph run another definition, if nothing has happened to it since the caller looked.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for delays
--- KEYS queues names of queues in use
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS definitions notes that they are needed
--- KEYS ir[] the new definition, and those that its subgraphs follow
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph run first, then steps the items point at
--- KEYS ledger[] its open steps
--- KEYS arrivals[] who has come to its joins
--- KEYS context[] what its nodes gave
--- KEYS gate[] what the references point at
--- KEYS line[] where steps wait that are taken back, and what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str who patches it
--- ARGV by_steps:int patches that steps made of it, this one included; 0: this one is by somebody outside
--- ARGV definition:str JSON: the new definition
--- ARGV revision:int the revision the patch was made for
--- ARGV seen:str the open steps as the caller saw them: `<step> <when it opened>`, separated by blanks
--- ARGV payload:str JSON: author, reason, operations, for the log
--- ARGV item{op:str run:int name:str task:int queue:int spec:str wait:str refs:str priority:int fair:str}[] `reset`: forget who has come to a join (name); `withdraw`: take back a step that waits at a gate (run, name, task: the line); else see lib/follow
--- ERRS epoch_missing stale_epoch stale_controls not_found
--- RETURNS `patched`, `done` (a repeated call), `moved` (steps have ended or begun since), `conflict <revision>` or `ended <status>`
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
--- @include lib/follow
local run_key, ledger_key = KEYS[run_keys_at + 1], KEYS[ledger_keys_at + 1]
local graph = {number = 1, id = run_of(run_key), opened = {}}
local got = call('HMGET', run_key, 'open', 'seq', 'watch', 'status', 'more', 'def', 'revision', 'failing', 'lone')
if not got[1] then return redis.error_reply('WEFT not_found there is no run ' .. graph.id) end
if string.sub(got[1], 1, 1) == '=' then return 'ended ' .. got[4] end
if got[8] then return 'ended failing' end
local digest, current = id_of(KEYS[ir_keys_at + 1], ':ir:'), tonumber(got[7] or 1)
if current == revision + 1 and got[6] == digest then return 'done' end
if current ~= revision then return 'conflict ' .. current end
-- The open steps, each with when it opened: whatever ends or begins changes them, so all that was decided on still holds.
if got[9] then return 'moved' end
local steps, flat = {}, call('HGETALL', ledger_key)
for f = 1, #flat, 2 do steps[flat[f]] = flat[f + 1] end
for step, opened in string.gmatch(seen, '(%S+) (%S+)') do
  if steps[step] ~= opened then return 'moved' end
  steps[step] = nil
end
if next(steps) then return 'moved' end
for i = 1, n_item do
  local op, r, _, line = item(i)
  if op == 'withdraw' and call('HGET', KEYS[run_keys_at + r], 'open') ~= '1:#' .. gate_of(line) then return 'moved' end
end
call('SET', KEYS[ir_keys_at + 1], definition, 'NX')
for d = 1, n_ir_keys do call('HSET', definitions_key, id_of(KEYS[ir_keys_at + d], ':ir:'), 0) end
for i = 1, n_item do
  local op, r, name, line = item(i)
  if op == 'withdraw' then
    local step_key = KEYS[run_keys_at + r]
    call('ZREM', line_of(line), run_of(step_key))
    call('DEL', step_key)
    call('HDEL', ledger_key, name)
  elseif op == 'reset' then
    call('HDEL', KEYS[arrivals_keys_at + 1], name)
  else
    follow(graph, i)
  end
end
local seq = (got[2] or 1) + 1
local facts = #graph.opened > 0 and 'opened=' .. table.concat(graph.opened, ' ') or ''
note(graph.id, seq, 'patched', facts, payload)
local at = write_log()
call('HSET', run_key, 'def', digest, 'before', got[6], 'revision', revision + 1, 'seq', seq, 'more', point(got[5], at))
if by_steps > 0 then call('HSET', run_key, 'by_steps', by_steps) end
write_effects(at)
if got[3] then tell(got[3], graph.id, 'patched', '', false) end
send_news()
return 'patched'
