-- The graph runs that a call is about: read once, told of, written at its end. Needs lib/now, wake, names, log, tell, effects and the families run,
-- ledger, context, arrivals, belongings, undo, items, blob, wake.
local graphs, touched, acked = {}, {}, {}
-- Lua does not roll back, so what a commit will write is looked at before: a key of the wrong type costs its run alone.
local function is_hash(key)
  local size = pcall('HLEN', key)
  return type(size) == 'number'
end
local function graph_of(g)
  local known = graphs[g]
  if known then return known end
  local run_key = KEYS[run_keys_at + g]
  local got = pcall('HMGET', run_key, 'open', 'seq', 'def', 'watch', 'more', 'deadline', 'failing')
  known = {number = g, id = run_of(run_key), key = run_key, opened = {}}
  known.broken = got.err ~= nil or not (is_hash(KEYS[ledger_keys_at + g]) and is_hash(KEYS[arrivals_keys_at + g])
    and is_hash(KEYS[context_keys_at + g]) and type(pcall('LLEN', KEYS[undo_keys_at + g])) == 'number')
  if not got.err then
    known.open, known.seq, known.def = got[1], tonumber(got[2] or 1), got[3]
    known.watch, known.more, known.deadline, known.failing = got[4], got[5], got[6], got[7]
  end
  graphs[g] = known
  return known
end
local function tell_of(graph, kind, facts, payload)
  graph.seq = graph.seq + 1
  touched[graph.number] = graph
  note(graph.id, graph.seq, kind, facts, payload)
  if graph.watch then tell(graph.watch, graph.id, kind, payload, false) end
end
-- Tells whether everything that was uploaded for a commit is still there.
local function is_staged(i, n)
  for at = i, i + n do
    local op, _, _, _, _, _, _, _, _, _, _, part, blob = item(at)
    if blob > 0 and call('EXISTS', KEYS[blob_keys_at + blob]) == 0 then return false end
    if op == 'scatter' and call('EXISTS', KEYS[items_keys_at + part]) == 0 then return false end
  end
  return true
end
-- Keeps a staged value as long as the run, and notes that there is one: whoever puts the run away finds it by that.
local function keep_blob(graph, number)
  local key = KEYS[blob_keys_at + number]
  call('PERSIST', key)
  call('SADD', KEYS[belongings_keys_at + graph.number], 'blob ' .. string.match(key, ':([^:]+)$'))
end
-- Takes the token of a step that is over, whatever became of its run.
local function consume(task, token)
  local dead = acked[task] or {}
  dead[#dead + 1] = token
  acked[task] = dead
end
-- Plans the end of a run: it failed, or nothing is open any more; `last` is the record of the step that puts its result together.
local function end_graph(graph, failure, result, last)
  if failure then
    graph.ending = {'failed', failure[1], failure[2], failure[3]}
  elseif call('HLEN', KEYS[ledger_keys_at + graph.number]) == 0 then
    if result then
      graph.ending = {'completed', result[1], result[2]}
    elseif last then
      local _, r, name, task, queue, spec = item(last)
      open_step(graph, r, name, task, queue, spec, '0', '', 5, '')
    end
  end
  if not graph.ending then return end
  graph.seq = graph.seq + 1
  note(graph.id, graph.seq, graph.ending[1], graph.ending[4] or '', graph.ending[2])
end
-- Writes what has become of a run. `at`: when the log tells of it.
local function write_graph(graph, at)
  local run_key, g = graph.key, graph.number
  if graph.ending then
    local kind, value, keep_ms = unpack(graph.ending)
    call('HSET', run_key, 'status', kind, kind == 'completed' and 'result' or 'error', value, 'open', '=' .. graph.open, 'seq', graph.seq,
      'ended', at)
    if graph.more then call('HSET', run_key, 'more', point(graph.more, at)) end
    for _, key in ipairs({run_key, KEYS[context_keys_at + g], KEYS[arrivals_keys_at + g], KEYS[belongings_keys_at + g], KEYS[undo_keys_at + g]}) do
      call('PEXPIRE', key, keep_ms)
    end
    if graph.deadline then call('ZREM', timers_key, 'deadline:' .. graph.id) end
    -- What is still open, and what lies around, is put away by the timer service.
    call('ZADD', timers_key, now, 'close:' .. graph.id)
    wake(KEYS[wake_keys_at + 1])
    if graph.watch then tell(graph.watch, graph.id, kind, value, true) end
  else
    call('HSET', run_key, 'seq', graph.seq, 'more', point(graph.more, at))
  end
end
