-- Returns a gate's name with the first in its line behind it: a token tells who may get its slot; see lib/heirs.
local function with_heirs(gate, line)
  local heirs = call('ZRANGE', line, 0, 7)
  return heirs[1] and gate .. ' >' .. table.concat(heirs, ' ') or gate
end
-- Lets the head of a line through, or says why not: `admitted`, `moved` (and the line it waits in now), `blocked`, `gone`. The run is
-- verified again. Needs lib/gates, lib/emit, lib/wake and the wake and stream lists. `turns`: number of the line's.
local function admit_head(run_key, at, turns, task, queue, refs, priority, fair)
  local run, here = run_of(run_key), line_of(at)
  local l, t, opens = blocked(run, refs, at, true)
  if opens then wake(KEYS[wake_keys_at + 1]) end
  if l == at then
    if opens then call('ZADD', timers_key, 'LT', string.format('%d', opens), 'gate:' .. gate_of(at)) end
    return 'blocked'
  end
  local score = turns > 0 and call('ZSCORE', here, run)
  if call('ZREM', here, run) == 0 then return 'gone' end
  local got = pcall('HMGET', run_key, 'open', 'spec', 'attempt')
  if got.err then return 'gone' end
  local delivery, gate, like = string.match(got[1] or '', '^(%d+):#(%S+)(.*)$')
  if gate ~= gate_of(at) then return 'gone' end
  if score then
    call('HSET', KEYS[turns_keys_at + turns], '@' .. priority, string.format('%.0f', score % 281474976710656))
  end
  if l then
    call('HSET', run_key, 'open', delivery .. ':#' .. queue_up(run, l, t, opens, priority, fair) .. like)
    return 'moved', l
  end
  local gates = pass(run, refs)
  local told = string.find(refs, '^c%d+:1:%d+:0$') and with_heirs(gates, here) or gates
  local token = emit_in_turn(key_held, KEYS[wf_tasks_keys_at + task], run, got[2], delivery, got[3] or '1', told)
  call('HSET', run_key, 'open', delivery .. ':' .. token, 'gates', gates)
  return 'admitted'
end
-- Forgets a line that nobody stands in any more; returns how many do.
local function close_line(at, turns)
  local left = call('ZCARD', line_of(at))
  if left == 0 then
    call('SREM', lines_key, gate_of(at))
    if turns > 0 then call('DEL', KEYS[turns_keys_at + turns]) end
  end
  return left
end
