-- What commit_flows does with one record. Behind a turn, and behind the end of a call, follow:
--   add     an entry of the journal: name (its header), spec (its payload), fair (`<event>|<facts>`; empty: none), blob, queue (number of
--           the run's belongings, for a blob)
--   open    a call begins, see lib/effects
--   ledger  the ledger that the calls behind it stand in: run
--   child   a run of its own goes with it: name, queue (number of the run's belongings)
--   tell    an event: name, spec
--   left    somebody is to be told of its end
--   state   what the run shows of itself: spec
--   lines   log lines: spec
--   renew   a new life begins: run (number of its ledger), queue (how long what it lets go is kept)
--   drop    what the life before lets go: name (as its belongings call it), run (number of the value, if it is one), queue (number of them)
--   answer  an update is answered: name (its id), spec (the answer), queue (number of the run's updates)
--   holds   the gates it has passed and not left, from now on: name
--   spec    what is asked of the run, from now on: spec
-- Answers an update, once, and tells who waits for it. The newest thousand answers stay.
local function answer_update(flow, key, id, answer)
  local known = call('HGET', key, '=' .. id)
  if known and string.sub(known, 1, 1) ~= '?' then return end
  if known then tell(string.sub(known, 2), flow.id, 'answered', '', true) end
  local place = '@' .. string.format('%d', call('HINCRBY', key, 'n', 1) % 1000)
  local oldest = call('HGET', key, place)
  if oldest then call('HDEL', key, '=' .. oldest) end
  call('HSET', key, '=' .. id, answer, place, id)
  flow.leaves = true
end
-- Does the records behind a turn; returns the new entries.
local function follow(flow, i, n, ledger)
  local entries, calls, keep_ms = {}, {id = flow.id, opened = {}}
  for at = i + 1, i + n do
    local op, r, name, task, queue, spec, wait, refs, priority, fair, blob = item(at)
    if op == 'add' then
      entries[#entries + 1] = now .. ' ' .. name .. '\n' .. spec
      if blob > 0 then keep_blob(flow, blob, queue) end
      local event, facts = string.match(fair, '^([^|]+)|(.*)$')
      if event then tell_of(flow, event, facts, spec) end
    elseif op == 'ledger' then
      calls.number = r
    elseif op == 'open' then
      open_step(calls, r, name, task, queue, spec, wait, refs, priority, fair)
      flow.leaves = true
    elseif op == 'child' then
      call('SADD', KEYS[belongings_keys_at + queue], 'child ' .. name)
      flow.leaves = true
    elseif op == 'tell' then
      tell_of(flow, name, '', spec)
    elseif op == 'left' then
      flow.leaves = true
    elseif op == 'state' then
      flow.state = spec
      if not keep_ms then tell_of(flow, 'state_changed', '', spec) end -- that a new life began tells it too
    elseif op == 'answer' then
      answer_update(flow, KEYS[updates_keys_at + queue], name, spec)
    elseif op == 'renew' then
      call('DEL', flow.journal, KEYS[ledger_keys_at + r])
      call('HDEL', flow.key, 'approvals')
      -- Lengths count on: whoever knows the life before is behind, however long this one gets.
      call('HSET', flow.key, 'lived', flow.length)
      keep_ms = queue
    elseif op == 'drop' then
      call('SREM', KEYS[belongings_keys_at + queue], name)
      if r > 0 then call('PEXPIRE', KEYS[blob_keys_at + r], keep_ms) end
    elseif op == 'holds' then
      flow.holds = name
    elseif op == 'spec' then
      call('HSET', flow.key, 'spec', spec)
    elseif op == 'lines' then
      local _, noted = keep_lines(flow.key, call('HGET', flow.key, 'noted'), ledger, spec)
      if noted then call('HSET', flow.key, 'noted', noted) end
      flow.leaves = true
    end
  end
  return entries
end
-- Returns why a turn changes nothing; nothing when it may go on.
local function refusal(flow, name, ledger, expect, task)
  if flow.broken then
    call('ZADD', repair_key, 'NX', now, flow.id)
    return {'broken'}
  elseif not flow.open then
    local token = string.match(ledger, ':(.+)$')
    call('XACK', KEYS[wf_tasks_keys_at + task], group, token)
    consume(task, token)
    return {'gone'}
  elseif flow.turn == name then
    return {'done', now, '0', unpack(call('LRANGE', flow.journal, expect - flow.before, expect - flow.before + 2000))}
  elseif flow.open ~= ledger then
    return {'stale'}
  elseif flow.length ~= expect then
    return {'behind'}
  end
end
local function take_turn(i, freed)
  local _, g, name, task, n, value, ledger, refs, expect, about, blob = item(i)
  local flow, token = flow_of(g), string.match(ledger, ':(.+)$')
  local kind, take, ms, started, unique, belongings = string.match(about, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  local stays = kind == 'go'
  local refused = refusal(flow, name, ledger, expect, task)
  if refused then
    return refused
  elseif not are_staged(i, n) then
    return {'blob_gone'}
  elseif kind == 'park' and flow.mails > 0 then
    return {'mail'}
  elseif kind == 'park' and ms ~= '0' and tonumber(ms) <= now_ms then
    return {'due', now}
  elseif not stays and call('XACK', KEYS[wf_tasks_keys_at + task], group, token) == 0 then
    return {'stale'}
  end
  flow.turn, flow.touched = name, true
  local taken = take ~= '0' and call('LPOP', flow.mail, take) or {}
  if #taken > 0 then tell_of(flow, 'resumed', 'mail=' .. #taken, '') end
  local entries = follow(flow, i, n, ledger)
  flow.length, flow.mails = flow.length + #taken + #entries, flow.mails - #taken
  flow.looks = stays and #taken == 0 and #entries == 0
  -- That it began comes first: its code was told that before it took its mail, and must be so again.
  if expect == 0 and entries[1] then call('RPUSH', flow.journal, table.remove(entries, 1)) end
  if #taken > 0 then call('RPUSH', flow.journal, unpack(taken)) end
  -- A new life may get thousands that nobody took: more than Lua hands over at once.
  for at = 1, #entries, 1000 do call('RPUSH', flow.journal, unpack(entries, at, math.min(at + 999, #entries))) end
  if not stays then
    consume(task, token)
    if refs ~= '' then
      release(flow.id, refs, freed)
      flow.leaving = true
    end
    leave(flow, kind, ms, ledger, value, started, tonumber(unique), tonumber(belongings), blob)
  end
  return {'ok', now, text[flow.mails], unpack(taken)}
end
