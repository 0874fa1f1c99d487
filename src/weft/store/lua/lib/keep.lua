-- Keeps a step's log lines with its run: the last 100 of them, 16 KB at most; the run counts all there were. Needs the family
-- tasklog. `logged` is `<number of the list's key>|<number of the first line>|`, then `<bytes>:<line>` each; for a step of a
-- graph run `<list>.<number of the graph run's key>|…`. What a repeated call brings again is left out: lines of one delivery are
-- numbered, and `noted` tells how many are kept (`<delivery>:<n>`). Returns the list's key and `noted` anew.
local function keep_lines(home_key, noted, ledger, logged)
  local key, first, at = string.match(logged, '^(%d+)[.%d]*|(%d+)|()')
  local list, delivery = KEYS[tasklog_keys_at + key], string.match(ledger, '^%d+')
  local kind = call('TYPE', list).ok
  if kind ~= 'list' and kind ~= 'none' then return list end
  local got = call('HMGET', home_key, 'logged', 'open')
  -- What a graph run left is put away already: a list that is made anew would stay for ever.
  if not got[2] or string.sub(got[2], 1, 1) == '=' then return list end
  local of, seen = string.match(noted or '', '^(%d+):(%d+)$')
  seen = of == delivery and tonumber(seen) or 0
  local n = first - 1
  while at <= #logged do
    local size, from = string.match(logged, '^(%d+):()', at)
    n, at = n + 1, from + size
    if n > seen then call('RPUSH', list, string.sub(logged, from, at - 1)) end
  end
  if n <= seen then return list end
  call('HSET', home_key, 'logged', (got[1] or 0) + n - seen)
  call('LTRIM', list, -100, -1)
  local kept, bytes = call('LRANGE', list, 0, -1), 0
  for i = #kept, 1, -1 do
    bytes = bytes + #kept[i]
    if bytes > 16384 then
      call('LTRIM', list, i, -1)
      break
    end
  end
  return list, delivery .. ':' .. n
end
-- The same for a step that stays: it remembers what is kept.
local function keep_logged(run_key, ledger, logged)
  local home = string.match(logged, '^%d+%.(%d+)|')
  local list, noted = keep_lines(home and KEYS[run_keys_at + home] or run_key, call('HGET', run_key, 'noted'), ledger, logged)
  if noted then call('HSET', run_key, 'noted', noted) end
  return list
end
