#!lua flags=allow-oom
--- commit_steps: Ends attempts: consumes each token and records its result, its failure, its retry or its return.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers retries are due there
--- KEYS repair runs that made a write fail
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS dlq runs that failed for good
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item, then heirs, then the graph runs whose steps logged something or go on
--- KEYS blob[] inputs and staged results the items point at
--- KEYS tasklog[] where the items' log lines go
--- KEYS unique[] records of calls that count as one, the items point at
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls by which heads may pass
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV item{kind:str task:int queue:int ledger:str* after_ms:str started_ms:str* input:str output:str value:str* refs:str? logged:str unique:str}[] kind: completed, failed, cancelled, retrying, snoozed, returned, or `head`: a run that may get a slot that becomes free (ledger: its line, after_ms: its turns, started_ms: its priority, value: its key); after_ms: how long the finished run is kept, or until the next attempt; refs: the gates whose slots it holds, and who inherits (see lib/heirs); logged: see lib/keep, empty when the run logged nothing
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `ok`, `done` (a repeated call), `stale`, `gone`, `blob_gone` or `broken`, for heads see admit_steps; then `1` when somebody waits at a gate
--- @include lib/fence
--- @include lib/now
--- @include lib/names
--- @include lib/tell
--- @include lib/wake
--- @include lib/log
--- @include lib/emit
--- @include lib/keep
--- @include lib/take
--- @include lib/closed
--- @include lib/above
--- @include lib/gates
--- @include lib/admit
--- @include lib/heirs
local reply, passed, acked, mine, freed, heads, woken = {}, {}, {}, {}, {}, {}, {}
-- 1. Check each item and take its token. What fails here has changed nothing but, at most, that token.
for i = 1, n_item do
  local kind, task, _, ledger, _, _, _, output = item(i)
  local run_key = KEYS[run_keys_at + i]
  local got = kind ~= 'head' and pcall('HMGET', run_key, 'open', 'seq', 'watch', 'attempt', 'deadline')
  local token = got and string.sub(ledger, string.find(ledger, ':', 1, true) + 1)
  if not got then
    heads[#heads + 1] = i
  elseif got.err then
    call('ZADD', repair_key, 'NX', now, run_of(run_key))
    reply[i] = 'broken'
  elseif not got[1] then
    -- Without its run nobody would ever take the token off the pending list.
    call('XACK', KEYS[wf_tasks_keys_at + task], group, token)
    call('XDEL', KEYS[wf_tasks_keys_at + task], token)
    reply[i] = 'gone'
  elseif got[1] ~= ledger or mine[run_key] then
    reply[i] = got[1] == '=' .. ledger and 'done' or 'stale'
  elseif output ~= '0' and call('EXISTS', KEYS[blob_keys_at + output]) == 0 then
    reply[i] = 'blob_gone'
  else
    local dead = acked[task] or {}
    dead[#dead + 1], acked[task], mine[run_key] = token, dead, true
    -- The reply goes on as what is known of the item: a table more for each would cost a hundredth of all.
    got[1], got[6], passed[#passed + 1] = i, task, got
  end
end
passed = take_tokens(passed, acked, reply)
-- 2. The log first: the runs point at the entry that tells of them.
for k = 1, #passed do
  local known = passed[k]
  local kind, _, _, _, after_ms, started_ms, _, _, value, _, logged = item(known[1])
  local run_key, seq, attempt = KEYS[run_keys_at + known[1]], text[(known[2] or 1) + 1], known[4] or '1'
  local run, facts = run_of(run_key), 'attempt=' .. attempt .. ',started=' .. started_ms
  if kind == 'retrying' or kind == 'snoozed' or kind == 'returned' then facts = facts .. ',after_ms=' .. after_ms end
  note(run, seq, kind, facts, value)
  if kind == 'retrying' or kind == 'snoozed' then tell_above(string.match(logged, '^%d+%.(%d+)|'), run_key, kind, facts, value) end
  known[2], known[4], known[6] = seq, attempt, run
end
local at = write_log()
write_above(at)
-- 3. Write each run. An item that fails here goes to repair; its neighbours go on.
for k = 1, #passed do
  local i, seq, watch, attempt, deadline, run = unpack(passed[k], 1, 6)
  local kind, task, queue, ledger, after_ms, started_ms, input, output, value, refs, logged, unique = item(i)
  local run_key = KEYS[run_keys_at + i]
  local list = logged ~= '' and keep_logged(run_key, ledger, logged)
  local wrote
  if kind == 'completed' or kind == 'failed' or kind == 'cancelled' then
    wrote = kind == 'completed' and close_run(run_key, ledger, seq, at, started_ms, value)
      or pcall('HSET', run_key, 'status', kind, 'error', value, 'open', '=' .. ledger, 'seq', seq, 'ended', at, 'started', started_ms)
    call('PEXPIRE', run_key, after_ms)
    if input ~= '0' then call('PEXPIRE', KEYS[blob_keys_at + input], after_ms) end
    if output ~= '0' then call('PEXPIRE', KEYS[blob_keys_at + output], after_ms) end
    if list then call('PEXPIRE', list, after_ms) end
    if deadline then call('ZREM', timers_key, 'deadline:' .. run) end
    if refs ~= '' then hand_on(run, refs, task, queue, freed) end
    if kind == 'failed' then
      call('HSET', run_key, 'by', by)
      call('ZADD', dlq_key, at, run)
    end
    -- What failed must not keep the next call of its kind from being made.
    if unique ~= '0' and kind ~= 'completed' and call('GET', KEYS[unique_keys_at + unique]) == run then
      call('DEL', KEYS[unique_keys_at + unique])
    end
    if watch then tell(watch, run, kind, value, true) end
  else
    local delivery = string.match(ledger, '^%d+') + 1
    if kind == 'retrying' then attempt = text[attempt + 1] end
    local again, open = call('HMGET', run_key, 'spec', 'gates', 'more')
    if after_ms ~= '0' or counts_starts(again[2]) then
      local due = string.format('%d', now_ms + after_ms)
      call('ZADD', timers_key, due, 'open:' .. run)
      open = delivery .. ':@' .. due
      if refs ~= '' then
        hand_on(run, refs, task, queue, freed)
        call('HDEL', run_key, 'gates')
      end
      wake(KEYS[wake_keys_at + 1])
    else
      open = delivery .. ':' .. emit_in_turn(again[2] and 1, KEYS[wf_tasks_keys_at + task], run, again[1], delivery, attempt, again[2])
      wake(KEYS[wake_keys_at + queue])
    end
    wrote = pcall('HSET', run_key, 'open', open, 'seq', seq, 'attempt', attempt, 'more', point(again[3], at))
    if kind == 'retrying' then call('HSET', run_key, 'error', value) end
    if kind ~= 'returned' and after_ms ~= '0' then call('HSET', run_key, 'status', 'waiting') end
    if watch then tell(watch, run, kind, value, false) end
  end
  reply[i] = type(wrote) == 'table' and 'broken' or 'ok'
  if reply[i] == 'broken' then call('ZADD', repair_key, 'NX', now, run) end
end
send_news()
-- 4. Slots go to heirs; those that became free to the heads the caller saw; where that was not enough, the gates are marked.
hand_all_on(freed, woken)
for _, i in ipairs(heads) do
  local _, task, queue, at, turns, priority, _, _, fair, refs = item(i)
  reply[i] = 'blocked'
  if (freed[at] or 0) > 0 and may_inherit then
    reply[i] = admit_head(KEYS[run_keys_at + i], tonumber(at), tonumber(turns), task, queue, refs, priority, fair)
    if reply[i] == 'admitted' then
      freed[at] = freed[at] - 1
      woken[queue] = true
    end
  end
end
for queue in pairs(woken) do wake(KEYS[wake_keys_at + queue]) end
if mark_freed(freed) then reply[n_item + 1] = '1' end
return reply
