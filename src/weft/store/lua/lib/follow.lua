-- Puts in when a node that had no worker began and ended: a map began when it was opened, everything else just now.
local function stamp(graph, outcome)
  local status, step = string.match(outcome, '^(%S+) (%S+)$')
  local began = status ~= 'skipped' and call('HGET', KEYS[ledger_keys_at + graph.number], step)
  return outcome .. ' 1 ' .. (began or now) .. ' ' .. now
end
-- Plans to tell of a mark: the log must suffice to know what every node came to. `<node>*` has the errors of a map's items.
local function tell_mark(graph, name, outcome, value, cached)
  local status, step = string.match(outcome, '^(%S+) (%S+)$')
  local kind = cached == 'cached' and 'step_cached' or string.sub(name, -1) == '*' and 'node_errors' or 'node_' .. status
  graph.marked[#graph.marked + 1] = {kind, 'step=' .. step, value}
end
-- Does one record of what follows in a graph run:
--   open    a step begins: run, name, task, queue, spec, wait (`0`, `<ms>` or `@<ms>`), refs, priority, fair
--   mark    a node has ended without a worker: name, wait (`<status> <step>`), spec (its value or error), refs (`cached`: it is
--           an earlier step's)
--   shut    a step that had no token is over: name
--   arrive  a predecessor reaches a join: name (the join), wait (`<predecessor>+`, `-` or `!`), refs (`<total> <need>`), and the step
--           that decides when all are there: run, task, queue, spec, priority
local function follow(graph, i)
  local op, r, name, task, queue, spec, wait, refs, priority, fair = item(i)
  if op == 'open' then
    open_step(graph, r, name, task, queue, spec, wait, refs, priority, fair)
  elseif op == 'mark' then
    mark_node(graph, name, stamp(graph, wait) .. (refs == 'cached' and ' cached\n' or ' -\n') .. spec)
    tell_mark(graph, name, wait, spec, refs)
  elseif op == 'shut' then
    call('HDEL', KEYS[ledger_keys_at + graph.number], name)
  elseif op == 'arrive' then
    local total, need = string.match(refs, '^(%d+) (%d+)$')
    arrive(graph, r, name, task, queue, spec, wait, tonumber(total), tonumber(need), priority)
  end
end
