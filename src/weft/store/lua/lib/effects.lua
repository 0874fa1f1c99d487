-- What follows the end of a step in a graph run. Needs lib/now, wake, names, log, emit, gates, due, and the families run, ledger,
-- arrivals, context, wf.tasks, wake. A graph run is `graph`: {number, id, opened, marked}; number points at its ledger, arrivals and context.
-- The step itself is a run of its own while it is open, so that queues, gates, timers and the sweeper know nothing of graphs.
local opening, marks = {}, {}
-- Plans to tell what events would else not say, and a run is rebuilt by: `j:<join>:<who came>`, `m:<map>:<n>:<most>:<needed>:<timed>` (it began),
-- `c:<map>:<items that were opened>`, `u` (the step can be undone), `d:<n>` (so many were undone).
local function trace(graph, what)
  graph.traces = graph.traces and graph.traces .. ' ' .. what or what
end
local function traced(graph) return graph.traces and ',trace=' .. graph.traces or '' end
-- An item of a map is represented by its map: the ledger never has a field per item.
local function is_item(name) return string.find(name, '#', 1, true) ~= nil and string.sub(name, -1) ~= '!' end
-- Plans to open a step. It counts from here on; its token is emitted when the log has told of it.
local function open_step(graph, r, name, task, queue, spec, wait, refs, priority, fair)
  local run_key = KEYS[run_keys_at + r]
  if not is_item(name) then
    -- A step that is open already stays as it is. Items are opened by the cursor of their map, which moves in the same call.
    if call('HSETNX', KEYS[ledger_keys_at + graph.number], name, now) == 0 then return end
    graph.opened[#graph.opened + 1] = name
  end
  local run = run_of(run_key)
  note(run, '1', 'queued', wait == '0' and '' or string.format('due=%d', due_of(wait)), spec)
  opening[#opening + 1] = {run_key, run, task, queue, spec, wait, refs, priority, fair}
end
-- Writes the hash of a step. What is there already is the ended one that a retried run left from before, or a dead letter: whoever held it
-- is refused by the new entry all the same.
local function write_step(run_key, ...)
  if call('HSET', run_key, ...) == select('#', ...) / 2 then return end
  call('DEL', run_key)
  call('HSET', run_key, ...)
end
-- Notes that a predecessor has come (`+`), was skipped (`-`) or failed (`!`); opens the join when it has what it needs, once.
-- `need` 0: all of `total`.
local function arrive(graph, r, name, task, queue, spec, who, total, need, priority)
  local key = KEYS[arrivals_keys_at + graph.number]
  local known = call('HGET', key, name) or ''
  local from = ' ' .. string.sub(who, 1, -2)
  -- Thousands may come: what is found and counted by a pattern of one word costs next to nothing.
  local text = ' ' .. known
  for mark in string.gmatch('+-!', '.') do
    if string.find(text, from .. mark, 1, true) then return end
  end
  known = known == '' and who or known .. ' ' .. who
  call('HSET', key, name, known)
  trace(graph, 'j:' .. name .. ':' .. who)
  if string.sub(known, 1, 1) == '=' then return end
  local _, came = string.gsub(known, '[-+!]', '')
  local _, skipped = string.gsub(known, '%-', '')
  local active = came - skipped
  if came == total or (need > 0 and active >= need) then
    call('HSET', key, name, '= ' .. known)
    open_step(graph, r, name .. '?', task, queue, spec, '0', '', priority, '')
  end
end
-- Plans to write what a node gave, or that it was skipped.
local function mark_node(graph, name, outcome)
  marks[#marks + 1] = {KEYS[context_keys_at + graph.number], name, outcome}
end
-- Does what was planned. `born`: when the log tells of it.
local function write_effects(born)
  for _, mark in ipairs(marks) do call('HSET', mark[1], mark[2], mark[3]) end
  local woken = {}
  for _, step in ipairs(opening) do
    local run_key, run, task, queue, spec, wait, refs, priority, fair = unpack(step, 1, 9)
    local open, gates
    local due_ms = wait == '0' and 0 or due_of(wait)
    if due_ms > now_ms then
      local due = string.format('%d', due_ms)
      call('ZADD', timers_key, due, 'open:' .. run)
      open, woken[1] = '1:@' .. due, true
    elseif refs == '' then
      open = '1:' .. emit(KEYS[wf_tasks_keys_at + task], run, spec, 1, 1)
      woken[queue] = true
    else
      local l, t, opens = blocked(run, refs, nil, true)
      if l then
        open = '1:#' .. queue_up(run, l, t, opens, priority, fair)
        if opens then woken[1] = true end
        call('SADD', queues_key, id_of(KEYS[wake_keys_at + queue], ':wake:'))
      else
        gates = pass(run, refs)
        open = '1:' .. emit_in_turn(key_held, KEYS[wf_tasks_keys_at + task], run, spec, 1, 1, gates)
        woken[queue] = true
      end
    end
    if gates then
      write_step(run_key, 'spec', spec, 'open', open, 'born', born, 'gates', gates)
    else
      write_step(run_key, 'spec', spec, 'open', open, 'born', born)
    end
  end
  for queue in pairs(woken) do
    local wake_key = KEYS[wake_keys_at + queue]
    wake(wake_key)
    if queue ~= 1 then call('SADD', queues_key, id_of(wake_key, ':wake:')) end
  end
end
