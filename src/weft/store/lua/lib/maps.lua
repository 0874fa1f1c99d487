-- Maps: one step per item. Needs lib/effects and the families map, items, results and belongings. Ledger and log know the map as one step; how far it
-- has come is in its own hash. Records:
--   scatter   the map begins: name, map, part (its staged items), wait (`<n> <most open at once> <needed>`; needed 0: all)
--   cursor    items were opened: map, wait (`<up to>`)
--   gathered  behind an item's end: the step that puts the results together, opened when it was the last one needed
--   refill    behind an item's end: the step that opens more of them, opened when there is room
local function scatter(graph, i)
  local _, _, name, _, _, _, wait, _, _, _, m, part = item(i)
  local n, most, need = string.match(wait, '^(%d+) (%d+) (%d+)$')
  call('HSET', KEYS[map_keys_at + m], 'n', n, 'most', most, 'need', need, 'at', 0, 'done', 0, 'failed', 0)
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
-- Tells whether a step that is gone was ended by this very token.
local function was_committed(graph, name, ledger, part)
  if is_item(name) then
    return call('HEXISTS', KEYS[results_keys_at + part], string.match(name, '#(%d+)$')) == 1
  end
  local known = call('HGET', KEYS[context_keys_at + graph.number], string.match(name, '^[^~?=+]+'))
  return known and string.find(known, ' ' .. name .. ' ', 1, true) and string.find(known, ' ' .. ledger .. '\n', 1, true) and true
end
local function end_item(graph, i, name, kind, value, started, attempt, ledger, m, part, n)
  local map_key = KEYS[map_keys_at + m]
  call('HSET', KEYS[results_keys_at + part], string.match(name, '#(%d+)$'), kind .. '\n' .. value)
  call('HINCRBY', map_key, kind == 'completed' and 'done' or 'failed', 1)
  local got = call('HMGET', map_key, 'n', 'at', 'done', 'failed', 'most', 'need', 'over', 'busy')
  if not got[1] or got[7] then return end
  local total, at, done, failed = tonumber(got[1]), tonumber(got[2]), tonumber(got[3]), tonumber(got[4])
  local most, need = tonumber(got[5]), tonumber(got[6])
  local wanted
  if done + failed == total or (need > 0 and (done >= need or total - failed < need)) then
    wanted = 'gathered'
    call('HSET', map_key, 'over', 1)
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
