#!lua
--- start_runs: Accepts runs: each gets its hash, its first event, and a token in its queue or a timer.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for delays and deadlines
--- KEYS queues names of queues in use
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item
--- KEYS blob[] staged inputs the items point at
--- KEYS idempotency[] records the items point at
--- KEYS unique[] records of calls that count as one, the items point at
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str who starts them
--- ARGV dropped:str msgpack: the error of a call that was dropped
--- ARGV watch:str a channel told when one of these runs ends; empty: none
--- ARGV item{spec:str* task:int queue:str delay_ms:str deadline_ms:str blob:str key:str digest:str window_ms:str refs:str? slots:str priority:int fair:str unique:str unique_ms:str keep_ms:str}[] one per run; refs: the gates it must pass; slots: empty, or of the one limit that nearly all have, so many slots in a line without turns, how many, and behind a blank how the run is like others, with the number of its line and gate as refs; unique: `j` join, `d` drop, `r` replace, or for a replay `t` take or `f` force; the record's number, a colon and a run that has ended, whose record a replay may take
--- ERRS epoch_missing stale_epoch stale_controls archive_behind
--- RETURNS per item: `started`, `replaced <run>` (started in its place), `exists` (a repeated call), `blob_gone`, `joined <run>`, `conflict <run>`, `dropped <run>` (it ended at once) or `active <run>` (it has the record that a replay was to take)
--- @include lib/fence
--- @include lib/now
--- @include lib/behind
--- @include lib/controls
--- @include lib/wake
--- @include lib/names
--- @include lib/emit
--- @include lib/due
--- @include lib/log
--- @include lib/gates
--- @include lib/enter
local reply, runs, fresh, queues, dropping, lined, used, earlier = {}, {}, {}, {}, {}, {}, {}, {}
-- Mostly all are new, which is asked once per call.
local all_new = n_item > 0 and n_item <= 1000 and call('EXISTS', unpack(KEYS, run_keys_at + 1, run_keys_at + n_item)) == 0
local function is_there(key) return not all_new and call('EXISTS', key) == 1 end
for i = 1, n_item do
  local spec, _, _, _, _, blob, key, digest, window_ms, _, _, _, _, unique, unique_ms = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = run_of(run_key)
  runs[i] = run
  local state = blob ~= '0' and call('EXISTS', KEYS[blob_keys_at + blob]) == 0 and 'blob_gone' or 'started'
  if key ~= '0' and state == 'started' then
    -- The record is written here, before the runs: two items of one call may carry the same key.
    local record_key = KEYS[idempotency_keys_at + key]
    local held = call('SET', record_key, run .. ' ' .. digest, 'NX', 'GET', 'PX', window_ms)
    if held then
      local first, first_digest = string.match(held, '^(%S+) (%S+)$')
      if first == run then state = 'exists'
      else state = (first_digest == digest and 'joined ' or 'conflict ') .. first end
    end
  end
  local policy, u, ended
  if unique ~= '0' then policy, u, ended = string.match(unique, '^(%a)(%d+):(.*)$') end
  local replay = policy == 't' or policy == 'f'
  -- Started before, by a call whose answer was lost: who has the record since does not matter. Nor must a run that has ended
  -- take it again, as a child would whose workflow makes sure of it once more.
  if (replay or policy == 'j') and state == 'started' and is_there(run_key) then state = 'exists' end
  if policy and state == 'started' then
    local record_key = KEYS[unique_keys_at + u]
    local held = call('SET', record_key, run, 'NX', 'GET', 'PX', unique_ms)
    if held and held ~= run then
      if replay then
        -- What has ended does not open again: it has ended now, too.
        if held == ended then call('SET', record_key, run, 'PX', unique_ms)
        elseif policy == 't' then state = 'active ' .. held end
      elseif policy == 'r' then
        call('SET', record_key, run, 'PX', unique_ms)
        -- The earlier one is ended by who is told of it here, or should that one die by the timer service: its keys are not known here.
        call('ZADD', timers_key, now, 'end:' .. held)
        queues['1'], earlier[i] = true, 'replaced ' .. held
      elseif policy == 'd' then
        state = 'dropped ' .. held
        if not is_there(run_key) then
          dropping[#dropping + 1] = i
          note(run, '1', 'queued', '', spec)
          note(run, '2', 'cancelled', 'unique=' .. held, dropped)
        end
      else
        state = 'joined ' .. held
      end
    end
  end
  if state == 'started' and is_there(run_key) then state = 'exists' end
  if state == 'started' then
    fresh[#fresh + 1] = i
    note(run, '1', 'queued', key ~= '0' and 'same=' .. digest or '', spec)
  end
  reply[i] = state == 'started' and earlier[i] or state
end
local born = write_log()
for _, i in ipairs(dropping) do
  local spec, keep_ms = item(i), select(16, item(i))
  local run_key = KEYS[run_keys_at + i]
  call('HSET', run_key, 'spec', spec, 'open', '=1:-', 'born', born, 'seq', 2, 'status', 'cancelled', 'error', dropped, 'ended', born)
  call('PEXPIRE', run_key, keep_ms)
end
for f = 1, #fresh do
  local i = fresh[f]
  local spec, task, queue, delay_ms, deadline_ms, blob, _, _, _, refs, slots, priority, fair = item(i)
  local run_key, run, open, gates = KEYS[run_keys_at + i], runs[i]
  local due_ms = delay_ms == '0' and 0 or due_of(delay_ms)
  if due_ms > now_ms then
    local due = string.format('%d', due_ms)
    call('ZADD', timers_key, due, 'open:' .. run)
    open, queues['1'] = '1:@' .. due, true
  elseif refs == '' then
    open = '1:' .. emit(KEYS[wf_tasks_keys_at + task], run, spec, 1, 1)
    queues[queue] = true
  else
    local gate, opens
    gate, opens, gates = enter(run, refs, slots, priority, fair, lined)
    if gate then
      open = '1:#' .. gate
      if opens then queues['1'] = true end
      used[queue] = true
    else
      open = '1:' .. emit_in_turn(key_held, KEYS[wf_tasks_keys_at + task], run, spec, 1, 1, gates)
      queues[queue] = true
    end
  end
  if deadline_ms ~= '0' then
    local due = string.format('%d', now_ms + deadline_ms)
    call('ZADD', timers_key, due, 'deadline:' .. run)
    call('HSET', run_key, 'spec', spec, 'open', open, 'born', born, 'deadline', due)
    if gates then call('HSET', run_key, 'gates', gates) end
    queues['1'] = true
  elseif gates then
    call('HSET', run_key, 'spec', spec, 'open', open, 'born', born, 'gates', gates)
  elseif watch ~= '' then
    call('HSET', run_key, 'spec', spec, 'open', open, 'born', born, 'watch', watch)
  else
    call('HSET', run_key, 'spec', spec, 'open', open, 'born', born)
  end
  if watch ~= '' and (gates or deadline_ms ~= '0') then call('HSET', run_key, 'watch', watch) end
  if blob ~= '0' then call('PERSIST', KEYS[blob_keys_at + blob]) end
end
for queue in pairs(queues) do
  wake(KEYS[wake_keys_at + queue])
  used[queue] = queue ~= '1' or nil
end
for queue in pairs(used) do call('SADD', queues_key, id_of(KEYS[wake_keys_at + queue], ':wake:')) end
if lined[1] then call('SADD', lines_key, unpack(lined)) end
return reply
