-- Puts in when a node that had no worker began and ended: a map began when it was opened, everything else just now.
local function stamp(graph, outcome)
  local head, step, rest = string.match(outcome, '^(%S+ (%S+) %S+) 0 0()')
  local began = string.sub(outcome, 1, 1) ~= 's' and call('HGET', KEYS[ledger_keys_at + graph.number], step)
  return head .. ' ' .. (began or now) .. ' ' .. now .. string.sub(outcome, rest)
end
-- Does one record of what follows in a graph run:
--   open    a step begins: run, name, task, queue, spec, wait (`0`, `<ms>` or `@<ms>`), refs, priority, fair
--   mark    a node has ended without a worker: name, spec (what the context keeps)
--   shut    a step that had no token is over: name
--   arrive  a predecessor reaches a join: name (the join), wait (`<predecessor>+`, `-` or `!`), refs (`<total> <need>`), and the step
--           that decides when all are there: run, task, queue, spec, priority
local function follow(graph, i)
  local op, r, name, task, queue, spec, wait, refs, priority, fair = item(i)
  if op == 'open' then
    open_step(graph, r, name, task, queue, spec, wait, refs, priority, fair)
  elseif op == 'mark' then
    mark_node(graph, name, stamp(graph, spec))
  elseif op == 'shut' then
    call('HDEL', KEYS[ledger_keys_at + graph.number], name)
  elseif op == 'arrive' then
    local total, need = string.match(refs, '^(%d+) (%d+)$')
    arrive(graph, r, name, task, queue, spec, wait, tonumber(total), tonumber(need), priority)
  end
end
