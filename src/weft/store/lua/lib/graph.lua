-- The graph runs that a call is about: read once, told of, written at its end. Needs lib/now, wake, names, log, tell, effects and the families run,
-- ledger, context, arrivals, belongings, undo, map, items, results, blob, wake. `followers`: what may follow the items of a map, by record.
--- @include lib/lone
local graphs, touched, acked, followers, buried, graves = {}, {}, {}, {}, {}, {}
-- Lua does not roll back, so what a commit will write is looked at before, or written by the first call that may fail: a key of the wrong type
-- costs its run alone.
local hashes = {}
local function is_hash(key)
  if hashes[key] == nil then hashes[key] = type(pcall('HLEN', key)) == 'number' end
  return hashes[key]
end
local function graph_of(g)
  local known = graphs[g]
  if known then return known end
  local run_key = KEYS[run_keys_at + g]
  local got = pcall('HMGET', run_key, 'open', 'seq', 'def', 'watch', 'more', 'failing', 'lone')
  -- Made in one piece: a table that grows is copied several times.
  known = {number = g, id = run_of(run_key), key = run_key, opened = {}, marked = {}, broken = got.err ~= nil, open = got[1] or nil,
    seq = tonumber(got[2] or 1), def = got[3], watch = got[4], more = got[5], failing = got[6], lone = got[7]}
  graphs[g] = known
  return known
end
-- Returns what the hash of a step would tell that stands alone: its ledger; nothing of any other step, which is not open.
local function lone_step(graph, name)
  local step, ledger, born = read_lone(graph.lone)
  graph.born = born
  return step == name and {ledger} or {}
end
local function tell_of(graph, kind, facts, payload)
  graph.seq = graph.seq + 1
  touched[graph.number] = graph
  note(graph.id, text[graph.seq], kind, facts, payload)
  if graph.watch then tell(graph.watch, graph.id, kind, payload, false) end
end
-- Looks through the records of an end, once. Returns whether what they write can be written, whether all that was uploaded for them is
-- still there, whether the step becomes a dead letter, and the map whose items they open.
local function survey(g, i, n, step, m, part, blob)
  local sound, staged, letter, opens = true, true, false, nil
  if part > 0 then
    sound = is_hash(KEYS[map_keys_at + m]) and is_hash(KEYS[results_keys_at + part]) and is_hash(KEYS[ledger_keys_at + g])
  end
  if blob > 0 then staged = call('EXISTS', KEYS[blob_keys_at + blob]) == 1 end
  for at = i + 1, i + n do
    local op, r, mm, place, kept, _ = item_op(at)
    -- Most records only open a step, and there is nothing to look at.
    if op ~= 'open' then op, r, _, _, _, _, _, _, _, _, mm, place, kept = item(at) end
    if kept and kept > 0 then staged = staged and call('EXISTS', KEYS[blob_keys_at + kept]) == 1 end
    if op == 'open' then -- its ledger was looked at
    elseif op == 'scatter' then staged = staged and call('EXISTS', KEYS[items_keys_at + place]) == 1
    elseif op == 'mark' then sound = sound and is_hash(KEYS[context_keys_at + g])
    elseif op == 'arrive' then sound = sound and is_hash(KEYS[arrivals_keys_at + g])
    elseif op == 'undoable' or op == 'undone' then sound = sound and type(pcall('LLEN', KEYS[undo_keys_at + g])) == 'number'
    elseif op == 'letter' then letter = letter or r == step
    elseif op == 'cursor' then opens = mm
    elseif op == 'rival' then sound = sound and is_hash(KEYS[run_keys_at + r])
    elseif op == 'gathered' or op == 'refill' then followers[op .. mm] = at
    end
  end
  return sound, staged, letter, opens
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
-- Writes what a node gave; returns whether that failed.
local function keep_given(graph, node, name, kind, attempt, started, ledger, value)
  -- How long it took, not when it ended: with that most values stay within the 64 bytes of a compact hash.
  local about = kind .. ' ' .. name .. ' ' .. attempt .. ' ' .. started .. ' +' .. text[math.max(0, now_ms - started)] .. ' ' .. ledger
  return type(pcall('HSET', KEYS[context_keys_at + graph.number], node, about .. '\n' .. value)) == 'table'
end
-- Takes a step out of the open ones, and writes what its node gave if it is one. These calls may fail, and nothing else of the run is written then:
-- the step stays, and gets a token again once the run is repaired. Returns whether one did.
local function end_step(graph, node, name, kind, attempt, started, ledger, value)
  if node and keep_given(graph, node, name, kind, attempt, started, ledger, value) then return true end
  if graph.lone then
    call('HDEL', graph.key, 'lone')
    graph.lone = nil
    return false
  end
  return type(pcall('HDEL', KEYS[ledger_keys_at + graph.number], name)) == 'table'
end
-- Takes the hash of a step that is over, unless it becomes a dead letter; from here on it counts as gone.
local function bury(r, over, letter)
  local run_key = KEYS[run_keys_at + r]
  if over then call('ZREM', timers_key, 'route:' .. run_of(run_key)) end
  if letter then return end
  buried[r] = true
  graves[#graves + 1] = run_key
end
local function drop_ended()
  for task, dead in pairs(acked) do call('XDEL', KEYS[wf_tasks_keys_at + task], unpack(dead)) end
  if graves[1] then call('DEL', unpack(graves)) end
end
-- Opens the step that puts a run's result together, should nothing be open any more; `last` is its record.
local function open_last(graph, last)
  if #graph.opened > 0 or call('HLEN', KEYS[ledger_keys_at + graph.number]) > 0 then return end
  local _, r, name, task, queue, spec = item(last)
  open_step(graph, r, name, task, queue, spec, '0', '', 5, '')
end
-- Plans the end of a run: it failed, or it has a result and nothing is open any more.
local function end_graph(graph, failure, result)
  if failure then
    graph.ending = {'failed', failure[1], failure[2], failure[3]}
  elseif result and #graph.opened == 0 and call('HLEN', KEYS[ledger_keys_at + graph.number]) == 0 then
    graph.ending = {'completed', result[1], result[2], nil, result[3]}
  end
  if not graph.ending then return end
  graph.seq = graph.seq + 1
  note(graph.id, text[graph.seq], graph.ending[1], graph.ending[4] or '', graph.ending[2])
end
-- Writes what has become of a run. `at`: when the log tells of it.
local function write_graph(graph, at)
  local run_key, g = graph.key, graph.number
  if graph.ending then
    local kind, value, keep_ms, _, plain = unpack(graph.ending, 1, 5)
    local got = call('HMGET', run_key, 'deadline', 'logged', 'paused', 'parent', 'revision')
    local fields = {'status', kind, kind == 'completed' and 'result' or 'error', value, 'open', '=' .. graph.open, 'seq', text[graph.seq],
      'ended', at}
    if graph.more then fields[11], fields[12] = 'more', point(graph.more, at) end
    call('HSET', run_key, unpack(fields))
    call('PEXPIRE', run_key, keep_ms)
    call('PEXPIRE', KEYS[context_keys_at + g], keep_ms)
    -- Most runs have neither joins nor belongings, and one look tells.
    local arrivals_key, belongings_key, has_belongings = KEYS[arrivals_keys_at + g], KEYS[belongings_keys_at + g], false
    if call('EXISTS', arrivals_key, belongings_key) > 0 then
      call('PEXPIRE', arrivals_key, keep_ms)
      has_belongings = call('PEXPIRE', belongings_key, keep_ms) == 1
    end
    if plain ~= 'plain' then call('PEXPIRE', KEYS[undo_keys_at + g], keep_ms) end
    if got[1] then call('ZREM', timers_key, 'deadline:' .. graph.id) end
    -- What is still open, and what lies around, is put away by the timer service; so are log lines, a pause, what an earlier definition
    -- had, and the news for a parent. A plain run that has none of these leaves nothing but keys that expire.
    if plain ~= 'plain' or has_belongings or got[2] or got[3] or got[4] or got[5] then
      call('ZADD', timers_key, now, 'close:' .. graph.id)
      wake(KEYS[wake_keys_at + 1])
    end
    if graph.watch then tell(graph.watch, graph.id, kind, value, true) end
  else
    call('HSET', run_key, 'seq', text[graph.seq], 'more', point(graph.more, at))
  end
end
