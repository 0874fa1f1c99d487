-- Keeps a step's log lines with its run: the last 100 of them, 16 KB at most; the run counts all there were. Needs the family
-- tasklog. `logged` is `<number of the list's key>|<number of the first line>|`, then `<bytes>:<line>` each. What a repeated
-- call brings again is left out: lines of one delivery are numbered. Returns the list's key.
local function keep_logged(run_key, ledger, logged)
  local key, first, at = string.match(logged, '^(%d+)|(%d+)|()')
  local list, delivery = KEYS[tasklog_keys_at + key], string.match(ledger, '^%d+')
  local kind = call('TYPE', list).ok
  if kind ~= 'list' and kind ~= 'none' then return list end
  local got = call('HMGET', run_key, 'logged', 'noted')
  local of, seen = string.match(got[2] or '', '^(%d+):(%d+)$')
  seen = of == delivery and tonumber(seen) or 0
  local n = first - 1
  while at <= #logged do
    local size, from = string.match(logged, '^(%d+):()', at)
    n, at = n + 1, from + size
    if n > seen then call('RPUSH', list, string.sub(logged, from, at - 1)) end
  end
  if n <= seen then return list end
  call('HSET', run_key, 'logged', (got[1] or 0) + n - seen, 'noted', delivery .. ':' .. n)
  call('LTRIM', list, -100, -1)
  local kept, bytes = call('LRANGE', list, 0, -1), 0
  for i = #kept, 1, -1 do
    bytes = bytes + #kept[i]
    if bytes > 16384 then
      call('LTRIM', list, i, -1)
      break
    end
  end
  return list
end
