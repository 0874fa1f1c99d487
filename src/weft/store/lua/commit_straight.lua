#!lua flags=allow-oom
--- commit_straight: Ends steps of graph runs behind each of which one plain step follows at once: the short way of commit_nodes.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS queues names of queues in use
--- KEYS repair runs that made a write fail
--- KEYS ir[] the definitions that the items were decided on
--- KEYS wake[] one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph runs first, then of each item its own and that of the step that follows
--- KEYS ledger[] open steps, one per graph run
--- KEYS context[] what nodes gave, one per graph run
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV packed:str msgpack, in one piece because so many arguments cost five times as much: two arrays. The first has five facts per item, which ended in its first attempt: number of its graph run, ledger, started (ms), numbers of what it gave and of its way. The second has the ways, each an array: name of the step, numbers of its stream and definition; then of the step that follows: name, numbers of its stream and wake key, its task where the definition and what came before it tell what it is asked, so that no event has to, and the number of what it is asked
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
-- Whatever is not as usual (ended, cut off, patched, out of order) is left to commit_nodes, which knows all of that. Nearly all of the time
-- goes into calls and tables: a run is the reply that tells of it (open, seq, def, watch, more, failing), and steps are told apart by their item.
local told, reply, digests, seen, acked, missing = cmsgpack.unpack(packed), {}, {}, {}, {}, {}
local graphs, ids, opens, touched, tails = {}, {}, {}, {}, {}
local facts, ways, steps_at = told[1], told[2], run_keys_at + n_ledger_keys
local n_item = #facts / 5
for d = 1, n_ir_keys do digests[d] = id_of(KEYS[ir_keys_at + d], ':ir:') end
for i = 1, n_item do
  local g, ledger, way, run_key = facts[5 * i - 4], facts[5 * i - 3], ways[facts[5 * i]], KEYS[steps_at + 2 * i - 1]
  local graph, task = graphs[g], way[2]
  if not graph then
    graph = pcall('HMGET', KEYS[run_keys_at + g], 'open', 'seq', 'def', 'watch', 'more', 'failing')
    graphs[g] = graph
  end
  if graph.err or not graph[1] or string.byte(graph[1]) == 61 or graph[6] or graph[3] ~= digests[way[3]]
    or seen[run_key] or pcall('HGET', run_key, 'open') ~= ledger then
    reply[i] = 'wide'
  else
    seen[run_key] = true
    local tokens = acked[task]
    if not tokens then
      tokens = {}
      acked[task] = tokens
    end
    tokens[#tokens + 1] = string.sub(ledger, string.find(ledger, ':', 1, true) + 1)
  end
end
-- The second refusal: a token that nobody holds was taken away with all others of its consumer or group.
for task, tokens in pairs(acked) do
  if call('XACK', KEYS[wf_tasks_keys_at + task], group, unpack(tokens)) < #tokens then missing[task], acked[task] = true, nil end
end
local graves = {}
for i = 1, n_item do
  if not reply[i] then
    local g, ledger, started, value, w = unpack(facts, 5 * i - 4, 5 * i)
    local way = ways[w]
    if missing[way[2]] then
      reply[i] = 'stale'
    else
      local graph, ledger_key, name, step, id = graphs[g], KEYS[ledger_keys_at + g], way[1], way[4], ids[g]
      value = body(value)
      if not id then
        id = run_of(KEYS[run_keys_at + g])
        ids[g] = id
      end
      -- How long it took, not when it ended: with that most values stay within the 64 bytes of a compact hash.
      local took = text[math.max(0, now_ms - started)]
      local failed = type(pcall('HSET', KEYS[context_keys_at + g], name,
        'completed ' .. name .. ' 1 ' .. started .. ' +' .. took .. ' ' .. ledger .. '\n' .. value)) == 'table'
      -- In before out: a hash that loses its last field is deleted and made anew.
      local new = not failed and pcall('HSETNX', ledger_key, step, now)
      if failed or type(new) == 'table' then
        call('ZADD', repair_key, 'NX', now, id)
        reply[i] = 'broken'
      else
        call('HDEL', ledger_key, name)
        graves[#graves + 1] = KEYS[steps_at + 2 * i - 1]
        local tail = ''
        if new == 1 then
          opens[#opens + 1] = i
          tail = tails[w]
          if not tail then
            tail = ',opened=' .. step .. (way[7] ~= '' and ',asks=' .. way[7] or '')
            tails[w] = tail
          end
          if way[7] == '' then note(id .. '/' .. step, '1', 'queued', '', body(way[8])) end
        end
        graph[2] = (graph[2] or 1) + 1
        touched[g] = graph
        note(id, text[graph[2]], 'step_completed', 'step=' .. name .. ',attempt=1,started=' .. started .. tail, value)
        if graph[4] then tell(graph[4], id, 'step_completed', value, false) end
        reply[i] = 'ok'
      end
    end
  end
end
for task, tokens in pairs(acked) do call('XDEL', KEYS[wf_tasks_keys_at + task], unpack(tokens)) end
if graves[1] then call('DEL', unpack(graves)) end
local at, woken = write_log(), {}
for _, i in ipairs(opens) do
  local way, run_key = ways[facts[5 * i]], KEYS[steps_at + 2 * i]
  local spec = body(way[8])
  local open = '1:' .. emit(KEYS[wf_tasks_keys_at + way[5]], ids[facts[5 * i - 4]] .. '/' .. way[4], spec, 1, 1)
  -- What is there already is the ended one that a retried run left from before, or a dead letter.
  if call('HSET', run_key, 'spec', spec, 'open', open, 'born', at) < 3 then
    call('DEL', run_key)
    call('HSET', run_key, 'spec', spec, 'open', open, 'born', at)
  end
  woken[way[6]] = true
end
for g, graph in pairs(touched) do
  call('HSET', KEYS[run_keys_at + g], 'seq', text[graph[2]], 'more', point(graph[5], at))
end
for queue in pairs(woken) do
  local wake_key = KEYS[wake_keys_at + queue]
  wake(wake_key)
  call('SADD', queues_key, id_of(wake_key, ':wake:'))
end
send_news()
return reply
