#!lua flags=allow-oom
--- commit_nodes: Ends steps of graph runs: consumes each token, records what it gave, and opens, skips or finishes what follows.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for delays
--- KEYS queues names of queues in use
--- KEYS repair runs that made a write fail
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] the graph runs first, then their steps
--- KEYS ledger[] open steps, one per graph run
--- KEYS arrivals[] who has come to the joins, one per graph run
--- KEYS context[] what nodes gave, one per graph run
--- KEYS map[] maps the items point at
--- KEYS results[] results of maps the items point at
--- KEYS blob[] staged values the items point at
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV item{op:str run:int name:str task:int queue:int spec:str wait:str refs:str priority:int fair:str map:int part:int blob:int}[] `end`: a step has ended (run: the step, name, task, queue: number of its graph run, spec: value, wait: ledger, refs: slots it holds, priority: how many records follow for it, fair: `<kind> <started ms> <attempt> <definition>`, map and part: for an item of a map); then what follows, see lib/follow and below
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS per record: for `end` `ok`, `done` (a repeated call), `stale`, `gone`, `again` (the definition changed), `blob_gone` or `broken`; else empty
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/due
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/gates
--- @include lib/effects
--- @include lib/follow
--- @include lib/maps
--- @include lib/graphs
local reply, freed = {}, {}
local i = 1
while i <= n_item do
  local _, r, name, task, g, value, ledger, refs, n, about, m, part, blob = item(i)
  local run_key, graph = KEYS[run_keys_at + r], graph_of(g)
  local kind, started, attempt, def = string.match(about, '^(%S+) (%S+) (%S+) (%S+)$')
  local got = pcall('HMGET', run_key, 'open', 'gates')
  -- A step that was ended by somebody else, such as poison by the sweeper, has no token any more.
  local token, over = string.match(ledger, ':(.+)$'), string.sub(ledger, 1, 1) == '='
  for at = i + 1, i + n do reply[at] = '' end
  if part > 0 then note_followers(i, n) end
  if got.err or graph.broken or not can_write(g, i, n, m, part) then
    call('ZADD', repair_key, 'NX', now, graph.id)
    reply[i] = 'broken'
  elseif not got[1] then
    reply[i] = was_committed(graph, name, ledger, part) and 'done' or 'gone'
  elseif got[1] ~= ledger then
    reply[i] = 'stale'
  elseif graph.open and string.sub(graph.open, 1, 1) ~= '=' and graph.def ~= def then
    reply[i] = 'again'
  elseif blob > 0 and call('EXISTS', KEYS[blob_keys_at + blob]) == 0 then
    reply[i] = 'blob_gone'
  elseif not over and call('XACK', KEYS[wf_tasks_keys_at + task], group, token) == 0 then
    reply[i] = 'stale'
  else
    if not over then consume(task, token) end
    if refs ~= '' then release(run_of(run_key), refs, freed) end
    call('DEL', run_key)
    if over then call('ZREM', timers_key, 'route:' .. run_of(run_key)) end
    if part == 0 then call('HDEL', KEYS[ledger_keys_at + g], name) end
    reply[i] = 'ok'
    if not graph.open or string.sub(graph.open, 1, 1) == '=' or graph.ending then
      -- The run has ended meanwhile: its steps go, and change nothing.
      reply[i] = 'gone'
    else
      if blob > 0 then keep_blob(graph, blob) end
      graph.opened = {}
      local router = string.find(name, '[?=+>$]') ~= nil
      if part > 0 then
        end_item(graph, name, kind, value, m, part)
      else
        if not router then
          local node = string.match(name, '^[^~]+')
          -- How long it took, not when it ended: with that most values stay within the 64 bytes of a compact hash.
          mark_node(graph, node, kind .. ' ' .. name .. ' ' .. attempt .. ' ' .. started .. ' +' .. text[now_ms - started] .. ' ' .. ledger .. '\n' .. value)
        end
      end
      local failure, result, last
      for at = i + 1, i + n do
        local op, _, _, _, _, spec, wait, plain, _, _, _, _, kept = item(at)
        if op == 'mark' and kept > 0 then keep_blob(graph, kept) end
        if op == 'fail' then failure = {spec, wait}
        elseif op == 'finish' then result = {spec, wait, plain}
        elseif op == 'last' then last = at
        elseif op == 'scatter' then scatter(graph, at)
        elseif op == 'cursor' then move_cursor(at)
        elseif op ~= 'gathered' and op ~= 'refill' then follow(graph, at) end
      end
      local open = table.concat(graph.opened, ' ')
      local facts = 'step=' .. name .. ',attempt=' .. attempt .. ',started=' .. started
      if open ~= '' then facts = facts .. ',opened=' .. open end
      tell_of(graph, router and 'routed' or 'step_' .. kind, facts, router and '' or value)
      if failure then
        graph.ending = {'failed', failure[1], failure[2]}
      elseif open == '' and (result or last) and call('HLEN', KEYS[ledger_keys_at + g]) == 0 then
        if result then
          graph.ending = {'completed', result[1], result[2], result[3]}
        elseif last then
          local _, lr, lname, ltask, lqueue, lspec = item(last)
          open_step(graph, lr, lname, ltask, lqueue, lspec, '0', '', 5, '')
        end
      end
      if graph.ending then
        graph.seq = graph.seq + 1
        note(graph.id, graph.seq, graph.ending[1], '', graph.ending[2])
      end
    end
  end
  i = i + 1 + n
end
drop_tokens()
local at = write_log()
write_effects(at)
write_maps()
for g, graph in pairs(touched) do
  local run_key = graph.key
  if graph.ending then
    local kind, value, keep_ms, plain = unpack(graph.ending)
    local got = call('HMGET', run_key, 'deadline', 'left', 'logged', 'paused')
    call('HSET', run_key, 'status', kind, kind == 'completed' and 'result' or 'error', value, 'open', '=' .. graph.open, 'seq', graph.seq,
      'ended', at)
    if graph.more then call('HSET', run_key, 'more', point(graph.more, at)) end
    for _, key in ipairs({run_key, KEYS[context_keys_at + g], KEYS[arrivals_keys_at + g]}) do call('PEXPIRE', key, keep_ms) end
    if got[1] then call('ZREM', timers_key, 'deadline:' .. graph.id) end
    -- What is still open, and what lies around (values as blobs, log lines, tokens that are held), is put away by the timer service.
    if plain ~= 'plain' or got[2] or got[3] or got[4] then
      call('ZADD', timers_key, now, 'close:' .. graph.id)
      wake(KEYS[wake_keys_at + 1])
    end
    if graph.watch then tell(graph.watch, graph.id, kind, value, true) end
  else
    call('HSET', run_key, 'seq', graph.seq, 'more', point(graph.more, at))
  end
end
send_news()
if next(freed) and mark_freed(freed) then wake(KEYS[wake_keys_at + 1]) end
return reply
