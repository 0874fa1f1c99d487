-- What follows the end of a step in a graph run. Needs lib/now, wake, names, log, emit, gates, due, and the families run, ledger,
-- arrivals, context, wf.tasks, wake. A graph run is `graph`: {number, id, opened}; number points at its ledger, arrivals and context.
-- The step itself is a run of its own while it is open, so that queues, gates, timers and the sweeper know nothing of graphs.
local opening, marks = {}, {}
-- An item of a map is represented by its map: the ledger never has a field per item.
local function is_item(name) return string.find(name, '#', 1, true) ~= nil and string.sub(name, -1) ~= '!' end
-- Plans to open a step. It counts from here on; its token is emitted when the log has told of it.
local function open_step(graph, r, name, task, queue, spec, wait, refs, priority, fair)
  local run_key = KEYS[run_keys_at + r]
  local was = call('HGET', run_key, 'open')
  -- An ended one is what a run that was retried left from before, or a dead letter: whoever held it is refused by the new entry all the same.
  if was and string.sub(was, 1, 1) ~= '=' then return end
  if was then call('DEL', run_key) end
  if not is_item(name) then call('HSET', KEYS[ledger_keys_at + graph.number], name, now) end
  note(run_of(run_key), '1', 'queued', '', spec)
  opening[#opening + 1] = {run_key, task, queue, spec, wait, refs, priority, fair}
  if not is_item(name) then graph.opened[#graph.opened + 1] = name end
end
-- Notes that a predecessor has come (`+`), was skipped (`-`) or failed (`!`); opens the join when it has what it needs, once.
-- `need` 0: all of `total`.
local function arrive(graph, r, name, task, queue, spec, who, total, need, priority)
  local key = KEYS[arrivals_keys_at + graph.number]
  local known = call('HGET', key, name) or ''
  local from = string.sub(who, 1, -2)
  for seen in string.gmatch(known, '(%S+)[-+!]') do
    if seen == from then return end
  end
  known = known == '' and who or known .. ' ' .. who
  call('HSET', key, name, known)
  if string.sub(known, 1, 1) == '=' then return end
  local came, active = 0, 0
  for mark in string.gmatch(known, '%S+([-+!])') do
    came = came + 1
    if mark ~= '-' then active = active + 1 end
  end
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
    local run_key, task, queue, spec, wait, refs, priority, fair = unpack(step, 1, 8)
    local run, open, gates = run_of(run_key)
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
        open = '1:' .. emit(KEYS[wf_tasks_keys_at + task], run, spec, 1, 1, gates)
        woken[queue] = true
      end
    end
    if gates then
      call('HSET', run_key, 'spec', spec, 'open', open, 'born', born, 'gates', gates)
    else
      call('HSET', run_key, 'spec', spec, 'open', open, 'born', born)
    end
  end
  for queue in pairs(woken) do
    local wake_key = KEYS[wake_keys_at + queue]
    wake(wake_key)
    if queue ~= 1 then call('SADD', queues_key, id_of(wake_key, ':wake:')) end
  end
end
