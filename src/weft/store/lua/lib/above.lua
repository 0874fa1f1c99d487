-- Tells graph and workflow runs of attempts of their steps that were not the last: under the run's own seq, so that its history has them. Needs lib/names,
-- log, tell and the family run; the events are planned before the log is written, the runs written behind it.
local above = {}
local function graph_above(key)
  if above[key] == nil then
    local got = pcall('HMGET', key, 'open', 'seq', 'watch', 'more')
    -- A run that is over, gone or broken has nothing more to tell.
    local live = not got.err and got[1] and string.sub(got[1], 1, 1) ~= '='
    above[key] = live and {id = run_of(key), seq = tonumber(got[2] or 1), watch = got[3], more = got[4]}
  end
  return above[key]
end
-- `number`: of the graph run's key, as text or number; nothing or 0: the step is none of a graph run.
local function tell_above(number, step_key, kind, facts, payload)
  local graph = number and number ~= 0 and graph_above(KEYS[run_keys_at + number])
  if not graph then return end
  graph.seq = graph.seq + 1
  local step, copy = string.match(step_key, '/([^/^]+)(%^?)$')
  if copy == '^' then facts = facts .. ',copy=1' end
  note(graph.id, graph.seq, 'step_' .. kind, 'step=' .. step .. ',' .. facts, payload)
  if graph.watch then tell(graph.watch, graph.id, 'step_' .. kind, payload, false) end
end
local function write_above(at)
  for key, graph in pairs(above) do
    if graph then call('HSET', key, 'seq', graph.seq, 'more', point(graph.more, at)) end
  end
end
