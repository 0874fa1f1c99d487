-- Items of maps that take long are run a second time, by a copy (`classify#17^`); who ends the item first wins. Needs lib/names, wake,
-- effects, graph, maps and the families run and results. Records:
--   race   the end of an item that may have a copy, or of a copy; the first record behind it is
--   rival  the other one: run
--   watch  a map begins: name, wait (ms after which its items are looked at); 0: it is over
local function is_open(r)
  local open = not buried[r] and call('HGET', KEYS[run_keys_at + r], 'open')
  return open and string.sub(open, 1, 1) ~= '='
end
local function copied(run_key) return string.sub(run_key, -1) == '^' and ',copy=1' or '' end
-- Tells whether the end of an item changes nothing: somebody else has ended it, or it failed and the other one is still at it.
local function outrun(graph, i, name, kind, attempt, value, part)
  local _, rival = item(i + 1)
  if has_ended(name, part) then return true end
  if kind ~= 'failed' or not is_open(rival) then return false end
  local _, r = item(i)
  tell_of(graph, 'step_yielded', 'step=' .. name .. ',attempt=' .. attempt .. copied(KEYS[run_keys_at + r]), value)
  return true
end
local function hedge(graph, i)
  local op, r, name, _, _, _, wait = item(i)
  if op == 'rival' then
    -- The timer service ends who has lost: where its token is, is found in data.
    if not is_open(r) then return end
    call('ZADD', timers_key, now, 'stop:' .. run_of(KEYS[run_keys_at + r]))
  elseif wait == '0' then
    call('ZREM', timers_key, 'hedge:' .. graph.id .. '/' .. name)
    return
  else
    call('ZADD', timers_key, string.format('%d', now_ms + wait), 'hedge:' .. graph.id .. '/' .. name)
  end
  wake(KEYS[wake_keys_at + 1])
end
