-- Maps: one step per item. Needs lib/effects and the families map, items, results and belongings. Ledger and log know the map as one step; how far it
-- has come is in its own hash. Records:
--   scatter   the map begins: name, map, part (its staged items), wait (`<n> <most open at once> <needed>`; needed 0: all),
--             refs (`timed`: it has a deadline)
--   cursor    items were opened: map, wait (`<up to>`)
--   gathered  behind the first item of a map that ends in a call: the step that puts the results together, opened when all needed are there
--   refill    the same: the step that opens more of them, opened when there is room
--   given     an item has its value from an earlier step: name, map, part, spec (value)
--   weigh     items were given: name, map; `gathered` and `refill` stand behind it
--   over      its deadline has come: map, and the step that puts together what is there
-- What a call changes of a map is written once, however many of its items end in it.
local maps, parts, counted = {}, {}, {}
local function map_of(m)
  local known = maps[m]
  if known then return known end
  local got = call('HMGET', KEYS[map_keys_at + m], 'n', 'at', 'done', 'failed', 'most', 'need', 'over', 'busy', 'timed')
  known = {total = tonumber(got[1]), at = tonumber(got[2]), done = tonumber(got[3]), failed = tonumber(got[4]),
    most = tonumber(got[5]), need = tonumber(got[6]), over = got[7], busy = got[8], timed = got[9]}
  maps[m] = known
  return known
end
local function scatter(graph, i)
  local _, _, name, _, _, _, wait, timed, _, _, m, part = item(i)
  local n, most, need = string.match(wait, '^(%d+) (%d+) (%d+)$')
  call('HSET', KEYS[map_keys_at + m], 'n', n, 'most', most, 'need', need, 'at', 0, 'done', 0, 'failed', 0)
  if timed ~= '' then call('HSET', KEYS[map_keys_at + m], 'timed', 1) end
  maps[m] = nil
  call('PERSIST', KEYS[items_keys_at + part])
  call('SADD', KEYS[belongings_keys_at + graph.number], 'map ' .. name .. ' ' .. n)
  call('HSET', KEYS[ledger_keys_at + graph.number], name, now)
  graph.opened[#graph.opened + 1] = name
  trace(graph, 'm:' .. name .. ':' .. n .. ':' .. most .. ':' .. need .. ':' .. (timed ~= '' and '1' or '0'))
end
local function move_cursor(graph, i)
  local _, _, name, _, _, _, wait, busy, _, _, m = item(i)
  trace(graph, 'c:' .. name .. ':' .. wait)
  local map = map_of(m)
  map.at, map.busy, map.changed = tonumber(wait), busy ~= '' and '1', true
end
local function is_over(m) return map_of(m).over end
-- Nothing more counts. The timer service ends what is still open: items, and the step that waits for the deadline.
local function end_map(graph, m, step, leaves)
  local map = map_of(m)
  map.over, map.changed = '1', true
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
-- Tells whether an item has ended, in an earlier call or in this one.
local function has_ended(name, part)
  local index = string.match(name, '#(%d+)$')
  return counted[part .. '#' .. index] or call('HEXISTS', KEYS[results_keys_at + part], index) == 1
end
-- Tells whether a step that is gone was ended by this very token.
local function was_committed(graph, name, ledger, part)
  if part > 0 then return has_ended(name, part) end
  local node = string.sub(name, -1) == '!' and name or string.match(name, '^[^~?=+]+')
  local known = call('HGET', KEYS[context_keys_at + graph.number], node)
  return known and string.find(known, ' ' .. name .. ' ', 1, true) and string.find(known, ' ' .. ledger .. '\n', 1, true) and true
end
-- Opens what follows when an item was the last one needed, or has left room; `deaf`: the run opens nothing any more.
local function weigh(graph, m, map_step, deaf)
  local map = map_of(m)
  if not map.total then return end
  local ended, wanted = map.done + map.failed
  if ended == map.total or (map.need > 0 and (map.done >= map.need or map.total - map.failed < map.need)) then
    wanted = 'gathered'
    end_map(graph, m, map_step, map.timed or map.at > ended)
  elseif map.at < map.total and not map.busy and map.at - ended <= (map.most > 64 and map.most / 2 or map.most - 1) then
    wanted, map.busy, map.changed = 'refill', '1', true
  end
  local f = wanted and not deaf and followers[wanted .. m]
  if not f then return end
  local _, r, step, task, queue, spec, _, _, priority = item(f)
  open_step(graph, r, step, task, queue, spec, '0', '', priority, '')
end
local function count_item(name, kind, value, m, part, cached)
  local fields, map = parts[part] or {}, map_of(m)
  if not map.total then return end
  local index = string.match(name, '#(%d+)$')
  fields[#fields + 1], fields[#fields + 2], counted[part .. '#' .. index] = index, kind .. '\n' .. value, true
  parts[part], map.changed = fields, true
  -- One that was discarded is done with, but no answer where so many are needed.
  local counts = kind == 'completed' or (kind == 'skipped' and map.need == 0)
  if counts then map.done = map.done + 1 else map.failed = map.failed + 1 end
  if cached then map.cached = (map.cached or 0) + 1 end
end
local function end_item(graph, deaf, name, kind, value, m, part)
  count_item(name, kind, value, m, part)
  weigh(graph, m, string.match(name, '^[^#]+'), deaf)
end
local function write_maps()
  for part, fields in pairs(parts) do call('HSET', KEYS[results_keys_at + part], unpack(fields)) end
  for m, map in pairs(maps) do
    if map.changed and map.total then
      local key = KEYS[map_keys_at + m]
      call('HSET', key, 'at', text[map.at], 'done', text[map.done], 'failed', text[map.failed])
      if map.over then call('HSET', key, 'over', 1) end
      if map.cached then call('HINCRBY', key, 'cached', map.cached) end
      if map.busy then call('HSET', key, 'busy', 1) else call('HDEL', key, 'busy') end
    end
  end
end
