-- The graph runs of one call, each read once. Needs lib/log, tell, names and the families run, ledger, arrivals, context, map, results, blob.
local graphs, touched, acked = {}, {}, {}
-- Lua does not roll back, so what a commit will write is looked at before: a key of the wrong type costs its run alone.
local hashes = {}
local function is_hash(key)
  if hashes[key] == nil then hashes[key] = type(pcall('HLEN', key)) == 'number' end
  return hashes[key]
end
-- Looks at what only some ends write: the joins they reach, and the map they belong to.
local function can_write(g, i, n, m, part)
  if part > 0 then return is_hash(KEYS[map_keys_at + m]) and is_hash(KEYS[results_keys_at + part]) end
  for at = i + 1, i + n do
    if item(at) == 'arrive' then return is_hash(KEYS[arrivals_keys_at + g]) end
  end
  return true
end
local function graph_of(g)
  local known = graphs[g]
  if known then return known end
  local run_key = KEYS[run_keys_at + g]
  local got = pcall('HMGET', run_key, 'open', 'seq', 'def', 'watch', 'more')
  known = {number = g, id = run_of(run_key), key = run_key, opened = {}}
  known.broken = got.err ~= nil or not (is_hash(KEYS[ledger_keys_at + g]) and is_hash(KEYS[context_keys_at + g]))
  if not got.err then
    known.open, known.seq, known.def = got[1], tonumber(got[2] or 1), got[3]
    known.watch, known.more = got[4], got[5]
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
local function keep_blob(graph, blob)
  call('PERSIST', KEYS[blob_keys_at + blob])
  if not graph.left then call('HSET', graph.key, 'left', 1) end
  graph.left = true
end
-- Takes the token of a step that is over, whatever became of its run.
local function consume(task, token)
  local dead = acked[task] or {}
  dead[#dead + 1] = token
  acked[task] = dead
end
local function drop_tokens()
  for task, dead in pairs(acked) do call('XDEL', KEYS[wf_tasks_keys_at + task], unpack(dead)) end
end
