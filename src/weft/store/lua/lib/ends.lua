-- Flows of one call: read once, told of, and written at its end; see lib/turns for what happens between. Needs lib/flows, log, wake and the
-- families run, journal, mail, belongings, blob, unique, wake.
local acked = {}
local function flow_of(g)
  local flow = flows[g]
  if not flow then
    flow = read_flow(KEYS[run_keys_at + g])
    flow.length, flow.mails = pcall('LLEN', KEYS[journal_keys_at + g]), pcall('LLEN', KEYS[mail_keys_at + g])
    flow.broken = flow.broken or type(flow.length) ~= 'number' or type(flow.mails) ~= 'number'
    if not flow.broken then flow.length = flow.length + flow.before end
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
    -- Its turns are told of by no event of their own.
    local delivery = string.match(ledger, '^%d+')
    note(flow.id, flow.seq, kind, 'started=' .. started .. (delivery ~= '1' and ',delivery=' .. delivery or ''), value)
    flow.ending, flow.ended = {kind, value, ms, started, unique, '=' .. ledger}, true
    if blob > 0 then keep_blob(flow, blob, belongings) end
  end
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
  if flow.holds == '' then call('HDEL', key, 'gates') elseif flow.holds then call('HSET', key, 'gates', flow.holds) end
  -- Three deaths in its whole life are no poison: only those at one place are, and who only looked for mail is where it was.
  if flow.crashes and not flow.looks then call('HDEL', key, 'crashes') end
  -- Not when mail came behind it, in this very call.
  if flow.parks and string.find(flow.open, ':[@?]') then
    call('HSET', key, 'open', flow.open, 'status', 'waiting', 'awaits', flow.awaits)
  end
end
