-- Undoing what a failing graph run has done. Needs the family undo: the steps that can be undone, the newest last. Records:
--   failing   the run will fail with this error (spec): nothing new begins
--   undoable  behind the end of a step: it can be undone, should the run fail
--   undone    the newest of them are dealt with: wait (how many)
-- Who undoes: the step that begins with it, and the compensations.
local function undoing(name) return name == '$undo' or string.sub(name, -1) == '!' end
local function undo(graph, i, step, value)
  local op, _, _, _, _, spec, wait = item(i)
  if op == 'failing' then
    graph.failing = spec
    graph.marked[#graph.marked + 1] = {'failing', '', spec}
    call('HSET', graph.key, 'failing', spec)
    call('HDEL', graph.key, 'parked') -- whoever waits for something from outside is ended next
  elseif op == 'undoable' then
    call('RPUSH', KEYS[undo_keys_at + graph.number], step .. '\n' .. value)
    trace(graph, 'u')
  elseif op == 'undone' then
    call('LTRIM', KEYS[undo_keys_at + graph.number], 0, -1 - wait)
    trace(graph, 'd:' .. wait)
  else
    return false
  end
  return true
end
