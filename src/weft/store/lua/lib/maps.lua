-- Maps: one step per item. Needs lib/effects and the families map, items, results and belongings. Ledger and log know the map as one step; how far it
-- has come is in its own hash. Records:
--   scatter   the map begins: name, map, part (its staged items), wait (`<n> <most open at once> <needed>`; needed 0: all),
--             refs (`timed`: it has a deadline)
--   cursor    items were opened: map, wait (`<up to>`)
--   gathered  behind an item's end: the step that puts the results together, opened when it was the last one needed
--   refill    behind an item's end: the step that opens more of them, opened when there is room
--   given     an item has its value from an earlier step: name, map, part, spec (value)
--   weigh     items were given: name, map; `gathered` and `refill` stand behind it
--   over      its deadline has come: map, and the step that puts together what is there
local function scatter(graph, i)
  local _, _, name, _, _, _, wait, timed, _, _, m, part = item(i)
  local n, most, need = string.match(wait, '^(%d+) (%d+) (%d+)$')
  call('HSET', KEYS[map_keys_at + m], 'n', n, 'most', most, 'need', need, 'at', 0, 'done', 0, 'failed', 0)
  if timed ~= '' then call('HSET', KEYS[map_keys_at + m], 'timed', 1) end
  call('PERSIST', KEYS[items_keys_at + part])
  call('SADD', KEYS[belongings_keys_at + graph.number], 'map ' .. name .. ' ' .. n)
  call('HSET', KEYS[ledger_keys_at + graph.number], name, now)
  graph.opened[#graph.opened + 1] = name
end
local function move_cursor(i)
  local _, _, _, _, _, _, wait, busy, _, _, m = item(i)
  call('HSET', KEYS[map_keys_at + m], 'at', wait)
  if busy == '' then call('HDEL', KEYS[map_keys_at + m], 'busy') else call('HSET', KEYS[map_keys_at + m], 'busy', 1) end
end
local function is_over(m) return call('HEXISTS', KEYS[map_keys_at + m], 'over') == 1 end
-- Tells whether a step opens items of a map that is over meanwhile.
local function opens_late(name, i, n)
  if not string.find(name, '+', 1, true) then return false end
  for at = i + 1, i + n do
    local op, _, _, _, _, _, _, _, _, _, m = item(at)
    if op == 'cursor' then return is_over(m) end
  end
  return false
end
-- Nothing more counts. The timer service ends what is still open: items, and the step that waits for the deadline.
local function end_map(graph, m, step, leaves)
  call('HSET', KEYS[map_keys_at + m], 'over', 1)
  if leaves then
    call('ZADD', timers_key, now, 'shut:' .. graph.id .. '/' .. step)
    wake(KEYS[wake_keys_at + 1])
  end
end
local function time_over(graph, i)
  local _, r, name, task, queue, spec, _, _, priority, _, m = item(i)
  if is_over(m) then return end
  end_map(graph, m, string.sub(name, 1, -2), true)
  open_step(graph, r, name, task, queue, spec, '0', '', priority, '')
end
-- Tells whether a step that is gone was ended by this very token.
local function was_committed(graph, name, ledger, part)
  if is_item(name) then
    return call('HEXISTS', KEYS[results_keys_at + part], string.match(name, '#(%d+)$')) == 1
  end
  local node = string.sub(name, -1) == '!' and name or string.match(name, '^[^~?=+]+')
  local known = call('HGET', KEYS[context_keys_at + graph.number], node)
  return known and string.find(known, ' ' .. name .. ' ', 1, true) and string.find(known, ' ' .. ledger .. '\n', 1, true) and true
end
-- Opens what follows when an item was the last one needed, or has left room; it stands among the records behind i.
local function weigh(graph, i, n, m, map_step)
  local map_key = KEYS[map_keys_at + m]
  local got = call('HMGET', map_key, 'n', 'at', 'done', 'failed', 'most', 'need', 'timed', 'busy')
  if not got[1] then return end
  local total, at, done, failed = tonumber(got[1]), tonumber(got[2]), tonumber(got[3]), tonumber(got[4])
  local most, need = tonumber(got[5]), tonumber(got[6])
  local wanted
  if done + failed == total or (need > 0 and (done >= need or total - failed < need)) then
    wanted = 'gathered'
    end_map(graph, m, map_step, got[7] or at > done + failed)
  elseif at < total and not got[8] and at - done - failed <= (most > 64 and most / 2 or most - 1) then
    wanted = 'refill'
    call('HSET', map_key, 'busy', 1)
  end
  if not wanted then return end
  for f = i + 1, i + n do
    local op, r, step, task, queue, spec, _, _, priority = item(f)
    if op == wanted then open_step(graph, r, step, task, queue, spec, '0', '', priority, '') end
  end
end
local function count_item(name, kind, value, m, part)
  call('HSET', KEYS[results_keys_at + part], string.match(name, '#(%d+)$'), kind .. '\n' .. value)
  call('HINCRBY', KEYS[map_keys_at + m], kind == 'completed' and 'done' or 'failed', 1)
end
local function end_item(graph, i, n, name, kind, value, m, part)
  count_item(name, kind, value, m, part)
  weigh(graph, i, n, m, string.match(name, '^[^#]+'))
end
