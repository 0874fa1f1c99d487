#!lua flags=allow-oom
--- commit_straight: Ends steps of graph runs behind each of which one plain step follows at once: the short way of commit_nodes.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS queues names of queues in use
--- KEYS repair runs that made a write fail
--- KEYS ir[] the definitions that the items were decided on
--- KEYS wake[] one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph runs first, then its own and that of the step that follows, for as many items: the others should stand alone
--- KEYS ledger[] open steps, one per graph run of those items, in the same order
--- KEYS context[] what nodes gave, one per graph run
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV packed:str msgpack, in one piece because so many arguments cost five times as much: two arrays. The first has five facts per item, which ended in its first attempt: number of its graph run, ledger, started (ms), numbers of what it gave and of its way. The second has the ways, each an array: name of the step, numbers of its stream and definition; then of the step that follows: name, numbers of its stream and wake key, its task where the definition and what came before it tell what it is asked, so that no event has to, the number of what it is asked, and 1 if it may stand alone in its run's hash
--- ARGV body{data:str}[] what steps gave and what others are asked, each once
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS per item: `ok`, `stale`, `broken`, or `wide`: nothing was done, commit_nodes knows what to do with it
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/alike
-- Whatever is not as usual (ended, cut off, patched, out of order) is left to commit_nodes, which knows all of that. Nearly all of the time
-- goes into calls and tables: a run is the reply that tells of it (open, seq, def, watch, more, failing, lone), and steps are told apart by
-- their item. A step that is the only open one of its run stands in the run's hash (`lone`, see lib/lone), and so does the one behind it.
local reply, digests, seen, acked, missing = {}, {}, {}, {}, {}
local graphs, ids, opens, touched, graves, woken = {}, {}, {}, {}, {}, {}
local facts, steps_at, sub = told[1], run_keys_at + n_context_keys, string.sub
local n_item, n_known = #facts / 5, (n_run_keys - n_context_keys) / 2
for d = 1, n_ir_keys do digests[d] = id_of(KEYS[ir_keys_at + d], ':ir:') end
for i = 1, n_item do
  local f = 5 * i
  local g, ledger, way = facts[f - 4], facts[f - 3], ways[facts[f]]
  local graph, task, stands = graphs[g], way[2], false
  if not graph then
    graph = pcall('HMGET', KEYS[run_keys_at + g], 'open', 'seq', 'def', 'watch', 'more', 'failing', 'lone')
    graphs[g] = graph
  end
  local lone = graph[7]
  if lone then
    local mark = way[1] .. ' ' .. ledger .. ' '
    stands = way[9] == 1 and not seen[g] and sub(lone, 1, #mark) == mark
    seen[g] = true
  elseif graph[1] and i <= n_known then
    local run_key = KEYS[steps_at + 2 * i - 1]
    stands = not seen[run_key] and pcall('HGET', run_key, 'open') == ledger
    seen[run_key] = true
  end
  if not stands or string.byte(graph[1]) == 61 or graph[6] or graph[3] ~= digests[way[3]] then
    reply[i] = 'wide'
  else
    local tokens = acked[task]
    if not tokens then
      tokens = {}
      acked[task] = tokens
    end
    tokens[#tokens + 1] = sub(ledger, lone and 3 or string.find(ledger, ':', 1, true) + 1)
  end
end
-- The second refusal: a token that nobody holds was taken away with all others of its consumer or group.
for task, tokens in pairs(acked) do
  if call('XACK', KEYS[wf_tasks_keys_at + task], group, unpack(tokens)) < #tokens then missing[task], acked[task] = true, nil end
end
for i = 1, n_item do
  if not reply[i] then
    local f = 5 * i
    local g, ledger, started, w = facts[f - 4], facts[f - 3], facts[f - 2], facts[f]
    local way = ways[w]
    if missing[way[2]] then
      reply[i] = 'stale'
    else
      local graph, name, step, id, value, new = graphs[g], way[1], way[4], ids[g], body(facts[f - 1]), 1
      if not id then
        id = run_of(KEYS[run_keys_at + g])
        ids[g] = id
      end
      local failed = type(pcall('HSET', KEYS[context_keys_at + g], name, kept[w] .. spans[started] .. ledger .. '\n' .. value)) == 'table'
      if not failed and not graph[7] then
        -- In before out: a hash that loses its last field is deleted and made anew.
        new = pcall('HSETNX', KEYS[ledger_keys_at + g], step, now)
        failed = type(new) == 'table'
        if not failed then
          call('HDEL', KEYS[ledger_keys_at + g], name)
          graves[#graves + 1] = KEYS[steps_at + 2 * i - 1]
        end
      end
      if failed then
        call('ZADD', repair_key, 'NX', now, id)
        reply[i] = 'broken'
      else
        if new == 1 then
          opens[#opens + 1] = i
          if way[7] == '' then note(id .. '/' .. step, '1', 'queued', '', way[8]) end
        end
        local seq = after[graph[2] or '1']
        graph[2] = seq
        if not graph[7] then touched[g] = graph end
        entry[n_entry + 1] = id
        n_entry = n_entry + 2
        entry[n_entry] = seq .. begins[w] .. started .. (new == 1 and tails[w] or '|') .. value
        if graph[4] then tell(graph[4], id, 'step_completed', value, false) end
        reply[i] = 'ok'
      end
    end
  end
end
for task, tokens in pairs(acked) do call('XDEL', KEYS[wf_tasks_keys_at + task], unpack(tokens)) end
if graves[1] then call('DEL', unpack(graves)) end
local at = write_log()
for _, i in ipairs(opens) do
  local g, way = facts[5 * i - 4], ways[facts[5 * i]]
  local graph, spec, step = graphs[g], way[8], way[4]
  local open = '1:' .. emit(KEYS[wf_tasks_keys_at + way[5]], ids[g] .. '/' .. step, spec, 1, 1)
  if graph[7] then
    call('HSET', KEYS[run_keys_at + g], 'seq', graph[2], 'more', point(graph[5], at), 'lone', step .. ' ' .. open .. ' ' .. at .. ' ' .. spec)
  else
    local run_key = KEYS[steps_at + 2 * i]
    -- What is there already is the ended one that a retried run left from before, or a dead letter.
    if call('HSET', run_key, 'spec', spec, 'open', open, 'born', at) < 3 then
      call('DEL', run_key)
      call('HSET', run_key, 'spec', spec, 'open', open, 'born', at)
    end
  end
  woken[way[6]] = true
end
for g, graph in pairs(touched) do call('HSET', KEYS[run_keys_at + g], 'seq', graph[2], 'more', point(graph[5], at)) end
for queue in pairs(woken) do
  local wake_key = KEYS[wake_keys_at + queue]
  wake(wake_key)
  call('SADD', queues_key, id_of(wake_key, ':wake:'))
end
send_news()
return reply
