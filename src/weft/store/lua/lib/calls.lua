-- The end of a call of a workflow run: it becomes mail of its run. Needs lib/turns. Behind it may follow `lines`, and `keep` for a staged
-- value (queue: number of the run's belongings).
local function end_call(i, flow, kind, started, attempt, stream, wake_at, freed)
  local _, r, name, task, n, value, ledger, refs, place, _, blob = item(i)
  local run_key, over = KEYS[run_keys_at + r], string.sub(ledger, 1, 1) == '='
  local got, token = pcall('HMGET', run_key, 'open', 'noted'), string.match(ledger, ':(.+)$')
  if got.err or flow.broken then
    call('ZADD', repair_key, 'NX', now, flow.id)
    return 'broken'
  elseif not got[1] then
    return 'done'
  elseif got[1] ~= ledger then
    return (not flow.open or flow.ended) and 'gone' or 'stale'
  elseif not are_staged(i, n) then
    return 'blob_gone'
  elseif not over and call('XACK', KEYS[wf_tasks_keys_at + task], group, token) == 0 then
    return 'stale'
  end
  if over then call('ZREM', timers_key, 'route:' .. run_of(run_key)) else consume(task, token) end
  if refs ~= '' then release(run_of(run_key), refs, freed) end
  call('DEL', run_key)
  call('HDEL', KEYS[ledger_keys_at + place], name)
  -- What comes behind the end of its run changes nothing.
  if not flow.open or flow.ended then return 'gone' end
  for at = i + 1, i + n do
    local op, _, _, _, belongings, spec = item(at)
    if op == 'lines' then keep_lines(flow.key, got[2], ledger, spec)
    elseif op == 'keep' and blob > 0 then keep_blob(flow, blob, belongings) end
  end
  flow.mails = flow.mails + 1
  call('RPUSH', flow.mail, now .. ' ended ' .. name .. ' ' .. kind .. '\n' .. value)
  tell_of(flow, 'step_' .. kind, 'step=' .. name .. ',attempt=' .. attempt .. ',started=' .. started, value)
  rouse(flow, KEYS[wf_tasks_keys_at + stream], KEYS[wake_keys_at + wake_at], group, inbox)
  return 'ok'
end
