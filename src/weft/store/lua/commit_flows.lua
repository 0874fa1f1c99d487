#!lua flags=allow-oom
--- commit_flows: Moves workflow runs on: journals what their code is told, opens calls, lets runs wait or ends them; the end of a call becomes mail of its run.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for sleeping runs
--- KEYS queues names of queues in use
--- KEYS repair runs that made a write fail
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS dlq runs that failed
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the workflow runs first, then calls
--- KEYS journal[] one per workflow run
--- KEYS mail[] one per workflow run
--- KEYS ledger[] open calls of the runs the items point at
--- KEYS belongings[] what goes with the runs the items point at
--- KEYS blob[] staged values the items point at
--- KEYS tasklog[] where the items' log lines go
--- KEYS unique[] ids of runs the items point at
--- KEYS updates[] updates of the runs the items point at
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV inbox:str prefix of the sessions' inboxes
--- ARGV item{op:str run:int name:str task:int queue:int spec:str wait:str refs:str priority:int fair:str blob:int}[] `turn`: a workflow goes on (run, name: id of the turn, task, queue: how many records follow, spec: result, error or where it waits, wait: ledger, refs: slots it holds, priority: entries its journal must have, fair: `<kind> <mail to take> <ms> <started ms> <number of its unique key> <number of its belongings>`, blob); `end`: a call has ended (run: the call, name, task, queue: how many follow, spec: value, wait: ledger, refs, priority: number of its ledger, fair: `<kind> <started ms> <attempt> <number of its run> <stream> <wake>`, blob); what follows: see below
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS per record a list: for `turn` and `end` a word first: `ok`, `done` (a repeated call), `stale`, `gone`, `behind` (the journal has other entries), `mail` (it has mail, and must not wait), `due` (so has a timer), `blob_gone` or `broken`; behind `ok` and `done` the time, how much mail waits, and entries: mail that was taken, or all since; else empty
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/due
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/keep
--- @include lib/emit
--- @include lib/gates
--- @include lib/effects
--- @include lib/flows
--- @include lib/ends
--- @include lib/turns
--- @include lib/calls
local reply, freed = {}, {}
local i = 1
while i <= n_item do
  local op, r, name, task, n, _, ledger, refs, _, about, blob = item(i)
  for at = i + 1, i + n do reply[at] = {} end
  if op == 'turn' then
    reply[i] = take_turn(i, freed)
  else
    local kind, started, attempt, g, stream, wake_at = string.match(about, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
    reply[i] = {end_call(i, flow_of(tonumber(g)), kind, started, attempt, tonumber(stream), tonumber(wake_at), freed)}
  end
  i = i + 1 + n
end
for task, dead in pairs(acked) do call('XDEL', KEYS[wf_tasks_keys_at + task], unpack(dead)) end
local at = write_log()
write_effects(at)
for _, flow in pairs(flows) do write_flow(flow, at) end
send_news()
if next(freed) and mark_freed(freed) then wake(KEYS[wake_keys_at + 1]) end
return reply
