#!lua flags=allow-oom
--- commit_bare: Ends attempts that have completed and leave nothing behind but slots, as most do. The short way of commit_steps, for many.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for the gates
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the ways point at
--- KEYS run[] one per attempt, then heirs
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls by which heirs may pass
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV packed:str msgpack, in one piece because so many arguments cost five times as much: three arrays. The first has four facts per attempt: its entry in the stream, when it began (ms), numbers of its result and of its way. The second has the ways, each an array: number of the stream, how long the finished run is kept (ms), number of the queue's wake key. The third has, unless it is empty, per attempt references to the gates whose slots it holds; or, of one of a key, an array: numbers of the line and the gate, then, if somebody inherits, the number of its run's key, its ledger if it waits for its first delivery, and what its token tells of the gate (empty: nobody is known behind it)
--- ARGV body{data:str}[] results, each once
--- ERRS epoch_missing stale_epoch
--- RETURNS `ok` if all are done and nobody waits at a gate; else per attempt `ok`, `stale`, or `wide`: nothing was done, commit_steps knows what to do with it; then `1` when somebody waits at a gate
--- @include lib/fence
--- @include lib/now
--- @include lib/names
--- @include lib/tell
--- @include lib/wake
--- @include lib/log
--- @include lib/emit
--- @include lib/take
--- @include lib/closed
--- @include lib/gates
--- @include lib/admit
--- @include lib/heirs
local told = cmsgpack.unpack(packed)
local facts, ways, held = told[1], told[2], told[3]
local reply, passed, acked, mine, all, n = {}, {}, {}, {}, true, #facts / 4
for i = 1, n do
  local run_key, token, way = KEYS[run_keys_at + i], facts[4 * i - 3], ways[facts[4 * i]]
  local got = pcall('HMGET', run_key, 'open', 'seq', 'watch', 'deadline')
  -- Only what has begun once is bare.
  if got[1] ~= '1:' .. token or got[4] or mine[run_key] then
    reply[i], all = 'wide', false
  else
    local task = way[1]
    local dead = acked[task] or {}
    dead[#dead + 1], acked[task], mine[run_key] = token, dead, true
    got[1], got[4], passed[#passed + 1], reply[i] = i, way, got, 'ok'
  end
end
local n_passed = #passed
passed = take_tokens(passed, acked, reply, function(known) return known[4][1] end)
all = all and #passed == n_passed
for k = 1, #passed do
  local known = passed[k]
  local i = known[1]
  known[2] = text[(known[2] or 1) + 1]
  entry[n_entry + 1], n_entry = run_of(KEYS[run_keys_at + i]), n_entry + 2
  entry[n_entry] = known[2] .. '|completed|attempt=1,started=' .. facts[4 * i - 2] .. '|' .. body(facts[4 * i - 1])
end
local at, freed, woken = write_log(), {}, {}
for k = 1, #passed do
  local i = passed[k][1]
  close_run(KEYS[run_keys_at + i], '1:' .. facts[4 * i - 3], passed[k][2], at, facts[4 * i - 2], body(facts[4 * i - 1]))
end
-- Before anything else may go wrong: what has ended must not stay for ever.
for k = 1, #passed do call('PEXPIRE', KEYS[run_keys_at + passed[k][1]], passed[k][4][2]) end
for k = 1, #passed do
  local i, _, watch, way = unpack(passed[k], 1, 4)
  local run, refs = run_of(KEYS[run_keys_at + i]), held[i]
  if watch then tell(watch, run, 'completed', body(facts[4 * i - 1]), true) end
  if type(refs) == 'table' then
    if refs[3] then hand_on_to(run, refs, way[1], way[3], freed) else release_slot(run, refs[1], refs[2], freed) end
  elseif refs and refs ~= '' then
    release(run, refs, freed)
  end
end
send_news()
if held[1] then
  hand_all_on(freed, woken)
  for queue in pairs(woken) do wake(KEYS[wake_keys_at + queue]) end
  if mark_freed(freed) then reply[n + 1], all = '1', false end
end
return all and 'ok' or reply
