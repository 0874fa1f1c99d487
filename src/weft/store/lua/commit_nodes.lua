#!lua flags=allow-oom
--- commit_nodes: Ends steps of graph runs: consumes each token, records what it gave, and opens, skips or finishes what follows.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for delays
--- KEYS queues names of queues in use
--- KEYS repair runs that made a write fail
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS dlq steps that became dead letters
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph runs first, then their steps
--- KEYS ledger[] open steps, one per graph run
--- KEYS arrivals[] who has come to the joins, one per graph run that has more than opened steps: those come first
--- KEYS context[] what nodes gave, one per graph run
--- KEYS belongings[] what goes with the graph runs, the same ones
--- KEYS undo[] what can be undone, the same ones
--- KEYS map[] maps the items point at
--- KEYS items[] staged items of maps that begin
--- KEYS results[] results of maps the items point at
--- KEYS blob[] staged values the items point at
--- KEYS tasklog[] where the items' log lines go
--- KEYS cache[] where the items keep what steps gave
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV item{op:str run:int* name:str* task:int queue:int* spec:str* wait:str* refs:str priority:int fair:str* map:int part:int blob:int}[] `end`, or `race` when another may end the same item: a step has ended (run: the step, name, task, queue: number of its graph run, spec: value, wait: ledger, refs: slots it holds, priority: how many records follow for it, fair: `<kind> <started ms> <attempt> <definition>`, map and part: for an item of a map, blob: its staged value); then what follows, see lib/follow, lib/maps, lib/undo, lib/letters and lib/hedges
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS per record: for `end` and `race` `ok`, `done` (a repeated call), `stale`, `gone`, `again` (the definition changed), `blob_gone` or `broken`; else empty
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/due
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/keep
--- @include lib/emit
--- @include lib/gates
--- @include lib/effects
--- @include lib/follow
--- @include lib/graph
--- @include lib/maps
--- @include lib/undo
--- @include lib/letters
--- @include lib/hedges
local reply, freed = {}, {}
local i = 1
while i <= n_item do
  local how, r, name, task, g, value, ledger, refs, n, about, m, part, blob = item(i)
  local run_key, graph = KEYS[run_keys_at + r], graph_of(g)
  local kind, started, attempt, def = string.match(about, '^(%S+) (%S+) (%S+) (%S+)$')
  local got = buried[r] and {} or graph.lone and lone_step(graph, name) or pcall('HMGET', run_key, 'open', 'noted', 'letter')
  -- A step that was ended by somebody else, such as poison by the sweeper, has no token any more.
  local token, over = string.match(ledger, ':(.+)$'), string.sub(ledger, 1, 1) == '='
  for at = i + 1, i + n do reply[at] = '' end
  local sound, staged, letter, opens = survey(g, i, n, r, m, part, blob)
  if got.err or graph.broken or not sound then
    call('ZADD', repair_key, 'NX', now, graph.id)
    reply[i] = 'broken'
  elseif not got[1] then
    reply[i] = was_committed(graph, name, ledger, part) and 'done' or 'gone'
  elseif got[3] then
    reply[i] = 'done'
  elseif got[1] ~= ledger then
    -- Steps of a run that has ended are ended one by one: whoever was about to commit one lost nothing.
    reply[i] = (not graph.open or string.sub(graph.open, 1, 1) == '=') and 'gone' or 'stale'
  elseif graph.open and string.sub(graph.open, 1, 1) ~= '=' and graph.def ~= def then
    reply[i] = 'again'
  elseif not staged then
    reply[i] = 'blob_gone'
  elseif not over and call('XACK', KEYS[wf_tasks_keys_at + task], group, token) == 0 then
    reply[i] = 'stale'
  else
    if not over then consume(task, token) end
    if refs ~= '' then release(run_of(run_key), refs, freed) end
    -- What comes behind the end of its run, or of its map, changes nothing.
    local live = graph.open and string.sub(graph.open, 1, 1) ~= '=' and not graph.ending and not (part > 0 and is_over(m))
      and not (how == 'race' and outrun(graph, i, name, kind, attempt, value, part))
    local router = string.find(name, '[?=+>$@]') ~= nil
    local node = live and part == 0 and not router and (undoing(name) and name or string.match(name, '^[^~]+'))
    if part == 0 and end_step(graph, node, name, kind, attempt, started, ledger, value) then
      call('ZADD', repair_key, 'NX', now, graph.id)
      reply[i] = 'broken'
    elseif not live then
      bury(r, over)
      reply[i] = 'gone'
    else
      -- What becomes a dead letter stays.
      bury(r, over, letter)
      reply[i] = 'ok'
      if blob > 0 then keep_blob(graph, blob) end
      graph.opened, graph.marked, graph.traces = {}, {}, nil
      -- A run that fails opens nothing any more; what its steps still give is kept, to be undone.
      local late = opens and string.find(name, '+', 1, true) and is_over(opens)
      local deaf = graph.failing and not undoing(name) or late
      if part > 0 then end_item(graph, deaf, name, kind, value, m, part) end
      local failure, result, last
      for at = i + 1, i + n do
        local op, to, child, task_at, queue, spec, wait, more, priority, fair, mm, place, kept = item(at)
        if kept > 0 and not deaf then keep_blob(graph, kept) end
        if op == 'open' and not deaf then open_step(graph, to, child, task_at, queue, spec, wait, more, priority, fair)
        elseif op == 'letter' then plan_letter(at, r, ledger, started, graph.born)
        elseif op == 'lines' then keep_lines(graph.key, got[2], ledger, spec)
        -- A step that opens more of a map may be the last one of the run, also when the map is over.
        elseif op == 'last' and late then last = at
        elseif (deaf and op ~= 'undoable') or undo(graph, at, name, value) then -- nothing more follows
        elseif op == 'fail' then failure = {spec, wait, more}
        elseif op == 'finish' then result = {spec, wait, more}
        elseif op == 'last' then last = at
        elseif op == 'scatter' then scatter(graph, at)
        elseif op == 'cursor' then move_cursor(graph, at)
        elseif op == 'remember' then call('SET', KEYS[cache_keys_at + place], spec, 'PX', wait)
        elseif op == 'given' then
          count_item(child, 'completed', spec, mm, place, true)
          graph.marked[#graph.marked + 1] = {'step_cached', 'step=' .. child, spec}
        elseif op == 'weigh' then weigh(graph, mm, child)
        elseif op == 'over' then time_over(graph, at)
        elseif op == 'watch' or op == 'rival' then hedge(graph, at)
        elseif op ~= 'gathered' and op ~= 'refill' then follow(graph, at)
        end
      end
      if last and not failure and not result then open_last(graph, last) end
      local open = table.concat(graph.opened, ' ')
      local facts = 'step=' .. name .. ',attempt=' .. attempt .. ',started=' .. started .. copied(run_key)
      if open ~= '' then facts = facts .. ',opened=' .. open end
      tell_of(graph, router and 'routed' or 'step_' .. kind, facts .. traced(graph), router and '' or value)
      for _, one in ipairs(graph.marked) do tell_of(graph, one[1], one[2], one[3]) end
      end_graph(graph, failure, result)
    end
  end
  i = i + 1 + n
end
drop_ended()
local at = write_log()
write_effects(at)
write_maps()
write_letters(at)
for _, graph in pairs(touched) do write_graph(graph, at) end
send_news()
if next(freed) and mark_freed(freed) then wake(KEYS[wake_keys_at + 1]) end
return reply
