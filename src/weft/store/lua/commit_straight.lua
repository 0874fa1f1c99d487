#!lua flags=allow-oom
--- commit_straight: Ends steps of graph runs behind each of which one plain step follows at once: the short way of commit_nodes.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for lib/effects; nothing is delayed here
--- KEYS queues names of queues in use
--- KEYS repair runs that made a write fail
--- KEYS ir[] the definitions that the items were decided on
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph runs first, then their steps
--- KEYS ledger[] open steps, one per graph run
--- KEYS context[] what nodes gave, one per graph run
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV packed:str msgpack, in one piece because so many arguments cost five times as much: one array, with eleven facts per item: numbers of its graph run and its own run, name, number of its stream, ledger, started (ms), number of its definition; then of the step that follows: number of its run, name, numbers of its stream and wake key
--- ARGV item{value:str spec:str}[] what a step gave that has completed in its first attempt, and what the one is asked that follows
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS per item: `ok`, `stale`, `broken`, or `wide`: nothing was done, commit_nodes knows what to do with it
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/due
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/effects
--- @include lib/graph
-- Whatever is not as usual (ended, cut off, patched, out of order) is left to commit_nodes, which knows all of that.
local facts, reply, digests, seen, missing = cmsgpack.unpack(packed), {}, {}, {}, {}
for d = 1, n_ir_keys do digests[d] = id_of(KEYS[ir_keys_at + d], ':ir:') end
for i = 1, n_item do
  local g, r, _, task, ledger, _, d = unpack(facts, 11 * i - 10, 11 * i - 4)
  local graph, run_key = graph_of(g), KEYS[run_keys_at + r]
  if graph.broken or not graph.open or string.byte(graph.open) == 61 or graph.failing or graph.def ~= digests[d]
    or seen[run_key] or pcall('HGET', run_key, 'open') ~= ledger then
    reply[i] = 'wide'
  else
    seen[run_key] = true
    consume(task, string.sub(ledger, string.find(ledger, ':', 1, true) + 1))
  end
end
-- The second refusal: a token that nobody holds was taken away with all others of its consumer or group.
for task, tokens in pairs(acked) do
  if call('XACK', KEYS[wf_tasks_keys_at + task], group, unpack(tokens)) < #tokens then missing[task], acked[task] = true, nil end
end
for i = 1, n_item do
  local g, r, name, task, ledger, started, _, next, step, stream, queue = unpack(facts, 11 * i - 10, 11 * i)
  if not reply[i] and missing[task] then
    reply[i] = 'stale'
  elseif not reply[i] then
    local graph, ledger_key, value, spec = graph_of(g), KEYS[ledger_keys_at + g], item(i)
    local failed, opens = keep_given(graph, name, name, 'completed', '1', started, ledger, value)
    -- In before out: a hash that loses its last field is deleted and made anew.
    if not failed then opens = pcall('HSETNX', ledger_key, step, now) end
    if failed or type(opens) == 'table' then
      call('ZADD', repair_key, 'NX', now, graph.id)
      reply[i] = 'broken'
    else
      call('HDEL', ledger_key, name)
      graves[#graves + 1] = KEYS[run_keys_at + r]
      local about = 'step=' .. name .. ',attempt=1,started=' .. started
      if opens == 1 then
        local next_key = KEYS[run_keys_at + next]
        local id = run_of(next_key)
        about = about .. ',opened=' .. step
        note(id, '1', 'queued', '', spec)
        opening[#opening + 1] = {next_key, id, stream, queue, spec, '0', ''}
      end
      tell_of(graph, 'step_completed', about, value)
      reply[i] = 'ok'
    end
  end
end
drop_ended()
local at = write_log()
write_effects(at)
for _, graph in pairs(touched) do write_graph(graph, at) end
send_news()
return reply
