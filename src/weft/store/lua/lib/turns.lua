-- What commit_flows does with one record. Behind a turn, and behind the end of a call, follow:
--   add     an entry of the journal: name (its header), spec (its payload), fair (`<event>|<facts>`; empty: none), blob, queue (number of
--           the run's belongings, for a blob)
--   open    a call begins, see lib/effects
--   ledger  the ledger that the calls behind it stand in: run
--   child   a run of its own goes with it: name, queue (number of the run's belongings)
--   tell    an event: name, spec
--   left    somebody is to be told of its end
--   state   what the run shows of itself: spec
--   lines   log lines: spec
local acked = {}
local function flow_of(g)
  local flow = flows[g]
  if not flow then
    flow = read_flow(KEYS[run_keys_at + g])
    local length = pcall('LLEN', KEYS[journal_keys_at + g])
    flow.length = length
    flow.broken = flow.broken or type(length) ~= 'number' or type(pcall('LLEN', KEYS[mail_keys_at + g])) ~= 'number'
    flow.journal, flow.mail = KEYS[journal_keys_at + g], KEYS[mail_keys_at + g]
    flows[g] = flow
  end
  return flow
end
local function consume(task, token)
  local dead = acked[task] or {}
  dead[#dead + 1] = token
  acked[task] = dead
end
local function are_staged(i, n)
  for at = i, i + n do
    local blob = select(11, item(at))
    if blob > 0 and call('EXISTS', KEYS[blob_keys_at + blob]) == 0 then return false end
  end
  return true
end
local function keep_blob(flow, blob, belongings)
  local key = KEYS[blob_keys_at + blob]
  call('PERSIST', key)
  call('SADD', KEYS[belongings_keys_at + belongings], 'blob ' .. string.match(key, ':([^:]+)$'))
  flow.leaves = true
end
-- Does the records behind a turn; returns the new entries.
local function follow(flow, i, n, ledger)
  local entries, calls = {}, {id = flow.id, opened = {}}
  for at = i + 1, i + n do
    local op, r, name, task, queue, spec, wait, refs, priority, fair, blob = item(at)
    if op == 'add' then
      entries[#entries + 1] = now .. ' ' .. name .. '\n' .. spec
      if blob > 0 then keep_blob(flow, blob, queue) end
      local event, facts = string.match(fair, '^([^|]+)|(.*)$')
      if event then tell_of(flow, event, facts, spec) end
    elseif op == 'ledger' then
      calls.number = r
    elseif op == 'open' then
      open_step(calls, r, name, task, queue, spec, wait, refs, priority, fair)
      flow.leaves = true
    elseif op == 'child' then
      call('SADD', KEYS[belongings_keys_at + queue], 'child ' .. name)
      flow.leaves = true
    elseif op == 'tell' then
      tell_of(flow, name, '', spec)
    elseif op == 'left' then
      flow.leaves = true
    elseif op == 'state' then
      flow.state = spec
    elseif op == 'lines' then
      local _, noted = keep_lines(flow.key, call('HGET', flow.key, 'noted'), ledger, spec)
      if noted then call('HSET', flow.key, 'noted', noted) end
      flow.leaves = true
    end
  end
  return entries
end
-- Ends what a flow had: it waits from here on, or is over.
local function leave(flow, kind, ms, ledger, value, started, unique, belongings, blob)
  if kind == 'park' or kind == 'stall' then
    local delivery = string.match(ledger, '^%d+') + 1
    flow.open, flow.parks, flow.awaits = delivery .. ':?flow', true, value
    if ms ~= '0' then
      flow.open = delivery .. ':@' .. ms
      call('ZADD', timers_key, ms, 'open:' .. flow.id)
      wake(KEYS[wake_keys_at + 1])
    end
  else
    flow.seq = flow.seq + 1
    flow.told = true
    note(flow.id, flow.seq, kind, 'started=' .. started, value)
    flow.ending, flow.ended = {kind, value, ms, started, unique, '=' .. ledger}, true
    if blob > 0 then keep_blob(flow, blob, belongings) end
  end
end
local function take_turn(i, freed)
  local _, g, name, task, n, value, ledger, refs, expect, about, blob = item(i)
  local flow, token = flow_of(g), string.match(ledger, ':(.+)$')
  local kind, take, ms, started, unique, belongings = string.match(about, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  local stays = kind == 'go'
  if flow.broken then
    call('ZADD', repair_key, 'NX', now, flow.id)
    return {'broken'}
  elseif not flow.open then
    call('XACK', KEYS[wf_tasks_keys_at + task], group, token)
    consume(task, token)
    return {'gone'}
  elseif flow.turn == name then
    return {'done', now, '0', unpack(call('LRANGE', flow.journal, expect, expect + 2000))}
  elseif flow.open ~= ledger then
    return {'stale'}
  elseif flow.length ~= expect then
    return {'behind'}
  elseif not are_staged(i, n) then
    return {'blob_gone'}
  elseif kind == 'park' and call('LLEN', flow.mail) > 0 then
    return {'mail'}
  elseif kind == 'park' and ms ~= '0' and tonumber(ms) <= now_ms then
    return {'due', now}
  elseif not stays and call('XACK', KEYS[wf_tasks_keys_at + task], group, token) == 0 then
    return {'stale'}
  end
  flow.turn, flow.touched = name, true
  local taken = take ~= '0' and call('LPOP', flow.mail, take) or {}
  if #taken > 0 then
    call('RPUSH', flow.journal, unpack(taken))
    tell_of(flow, 'resumed', 'mail=' .. #taken, '')
  end
  local entries = follow(flow, i, n, ledger)
  if #entries > 0 then call('RPUSH', flow.journal, unpack(entries)) end
  flow.length = flow.length + #taken + #entries
  if not stays then
    consume(task, token)
    if refs ~= '' then
      release(flow.id, refs, freed)
      flow.leaving = true
    end
    leave(flow, kind, ms, ledger, value, started, tonumber(unique), tonumber(belongings), blob)
  end
  return {'ok', now, text[call('LLEN', flow.mail)], unpack(taken)}
end
-- Writes what has become of a flow. `at`: when the log tells of it.
local function write_flow(flow, at)
  if not flow.touched then return end
  local key = flow.key
  if flow.leaves and not flow.left then call('HSET', key, 'left', 1) end
  if flow.ending then
    local kind, value, keep_ms, started, unique, open = unpack(flow.ending)
    call('HSET', key, 'status', kind, kind == 'completed' and 'result' or 'error', value, 'open', open, 'seq', flow.seq, 'ended', at,
      'started', started, 'turn', flow.turn)
    if flow.state then call('HSET', key, 'state', flow.state) end
    if flow.leaving then call('HDEL', key, 'gates') end
    call('PEXPIRE', key, keep_ms)
    if kind == 'completed' then call('DEL', flow.journal) else call('PEXPIRE', flow.journal, keep_ms) end
    call('DEL', flow.mail)
    if flow.deadline then call('ZREM', timers_key, 'deadline:' .. flow.id) end
    if kind == 'failed' then
      call('HSET', key, 'by', by)
      call('ZADD', dlq_key, at, flow.id)
    end
    if unique > 0 and call('GET', KEYS[unique_keys_at + unique]) == flow.id then call('DEL', KEYS[unique_keys_at + unique]) end
    -- What it leaves, and who is to be told, is not known here.
    if flow.leaves or flow.left then
      call('ZADD', timers_key, now, 'close:' .. flow.id)
      wake(KEYS[wake_keys_at + 1])
    end
    if flow.watch then tell(flow.watch, flow.id, kind, value, true) end
    return
  end
  if flow.told then
    call('HSET', key, 'seq', flow.seq, 'turn', flow.turn, 'more', point(flow.more, at))
  else
    call('HSET', key, 'turn', flow.turn)
  end
  if flow.state then call('HSET', key, 'state', flow.state) end
  -- Three deaths in its whole life are no poison: only those at one place are.
  if flow.crashes then call('HDEL', key, 'crashes') end
  -- Not when mail came behind it, in this very call.
  if flow.parks and string.find(flow.open, ':[@?]') then
    call('HSET', key, 'open', flow.open, 'status', 'waiting', 'awaits', flow.awaits)
    if flow.leaving then call('HDEL', key, 'gates') end
  end
end
