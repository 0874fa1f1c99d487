-- Puts the run that has a gate's handed-on slot in the place of `>`: another comes in beside it, and lib/heirs counts on `>` being alone.
local has_heirs
local function share_gate(l, gate)
  if has_heirs == nil then has_heirs = call('EXISTS', heirs_key) == 1 end
  local heir = has_heirs and call('HGET', heirs_key, gate_of(l))
  if not heir then return end
  call('HDEL', heirs_key, gate_of(l))
  call('ZREM', gate, '>')
  call('ZADD', gate, now, heir)
end
-- Counts the run at all its gates and returns their names, separated by blanks. `begins`: a worker begins it now.
local function pass(run, refs, begins)
  local names = {}
  for kind, l, rest in string.gmatch(refs, '(%a)(%d+):(%S+)') do
    if kind == 'c' then
      local n, g, t = string.match(rest, '^(%d+):(%d+):(%d+)')
      local gate = KEYS[gate_keys_at + g]
      if t == '0' and n ~= '1' then share_gate(l, gate) end
      call('ZADD', gate, 'NX', now, run)
    else
      local window, cost, k = string.match(rest, '^%d+:(%d+):(%d+):(%d+)')
      local key = KEYS[ratelimit_keys_at + k]
      if begins then
        local grain = math.max(1, math.floor(window / 50))
        local at = math.floor(now_ms / grain)
        call('HDEL', key, '@' .. run)
        call('HINCRBY', key, string.format('%d', at), cost)
        if is_waited(l) then
          call('ZADD', timers_key, 'LT', string.format('%d', (at + 1) * grain + window), 'gate:' .. gate_of(l))
        end
      else
        call('HSET', key, '@' .. run, cost)
      end
      call('PEXPIRE', key, 2 * window + 1000)
    end
    if kind ~= 'p' then names[#names + 1] = gate_of(l) end
  end
  return table.concat(names, ' ')
end
