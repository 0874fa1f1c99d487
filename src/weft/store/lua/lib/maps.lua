-- Maps: one step per item. Needs lib/effects and the families map and results. Ledger and log know the map as one step; how far it
-- has come is in its own hash. Records:
--   scatter   the map begins: name, map, wait (`<n> <most open at once> <needed>`; needed 0: all)
--   cursor    items were opened: map, wait (`<up to>`)
--   gathered  behind an item's end: the step that puts the results together, opened when it was the last one needed
--   refill    behind an item's end: the step that opens more of them, opened when there is room
--   Both come with the first item of their map in a call, for all of them.
-- What a call changes of a map is written once, however many of its items end in it.
local maps, parts, followers = {}, {}, {}
local function map_of(m)
  local known = maps[m]
  if known then return known end
  local got = call('HMGET', KEYS[map_keys_at + m], 'n', 'at', 'done', 'failed', 'most', 'need', 'over', 'busy')
  known = {total = tonumber(got[1]), at = tonumber(got[2]), done = tonumber(got[3]), failed = tonumber(got[4]),
    most = tonumber(got[5]), need = tonumber(got[6]), over = got[7], busy = got[8]}
  maps[m] = known
  return known
end
local function scatter(graph, i)
  local _, _, name, _, _, _, wait, _, _, _, m = item(i)
  local n, most, need = string.match(wait, '^(%d+) (%d+) (%d+)$')
  call('HSET', KEYS[map_keys_at + m], 'n', n, 'most', most, 'need', need, 'at', 0, 'done', 0, 'failed', 0)
  call('HSET', KEYS[ledger_keys_at + graph.number], name, now)
  graph.opened[#graph.opened + 1] = name
  maps[m] = nil
end
local function move_cursor(i)
  local _, _, _, _, _, _, wait, busy, _, _, m = item(i)
  local map = map_of(m)
  map.at, map.busy, map.changed = tonumber(wait), busy ~= '' and '1', true
end
local function note_followers(i, n)
  for f = i + 1, i + n do
    local op, _, _, _, _, _, _, _, _, _, m = item(f)
    if op == 'gathered' or op == 'refill' then followers[op .. m] = f end
  end
end
local function write_maps()
  for part, fields in pairs(parts) do call('HSET', KEYS[results_keys_at + part], unpack(fields)) end
  for m, map in pairs(maps) do
    if map.changed and map.total then
      local key = KEYS[map_keys_at + m]
      call('HSET', key, 'at', text[map.at], 'done', text[map.done], 'failed', text[map.failed])
      if map.over then call('HSET', key, 'over', 1) end
      if map.busy then call('HSET', key, 'busy', 1) else call('HDEL', key, 'busy') end
    end
  end
end
-- Tells whether a step that is gone was ended by this very token.
local function was_committed(graph, name, ledger, part)
  if is_item(name) then
    return call('HEXISTS', KEYS[results_keys_at + part], string.match(name, '#(%d+)$')) == 1
  end
  local known = call('HGET', KEYS[context_keys_at + graph.number], string.match(name, '^[^~?=+]+'))
  return known and string.find(known, ' ' .. name .. ' ', 1, true) and string.find(known, ' ' .. ledger .. '\n', 1, true) and true
end
local function end_item(graph, name, kind, value, m, part)
  local fields = parts[part] or {}
  fields[#fields + 1], fields[#fields + 2] = string.match(name, '#(%d+)$'), kind .. '\n' .. value
  parts[part] = fields
  local map = map_of(m)
  if not map.total then return end
  map.changed = true
  if kind == 'completed' then map.done = map.done + 1 else map.failed = map.failed + 1 end
  if map.over then return end
  local done, failed, most, need = map.done, map.failed, map.most, map.need
  local wanted
  if done + failed == map.total or (need > 0 and (done >= need or map.total - failed < need)) then
    wanted, map.over = 'gathered', '1'
  elseif map.at < map.total and not map.busy and map.at - done - failed <= (most > 64 and most / 2 or most - 1) then
    wanted, map.busy = 'refill', '1'
  end
  local f = wanted and followers[wanted .. m]
  if not f then return end
  local _, r, step, task, queue, spec, _, _, priority = item(f)
  open_step(graph, r, step, task, queue, spec, '0', '', priority, '')
end
