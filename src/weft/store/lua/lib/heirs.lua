-- Handing slots over. A run whose only limit is one of its key at a time carries in its token who stood behind it in line (after
-- `>`, behind the name of its gate), and its commit names the first of them, its heir, behind its references:
--   c<line>:1:<gate>:0 ><number of the heir's run key>:<likeness> <who comes behind the heir>
-- A start says how a run is like others (`=<likeness>`), which is kept as `like`: an heir that is like the one before it needs the
-- same stream and the same limit, and nobody has to read it before. Needs lib/admit and controls. Binds may_inherit:
-- who does not know what operators have set since lets nobody through.
local may_inherit = (home[3] or '0') == controls
-- Gives the run's slot to its heir, if that is the first in line and there is room, and notes in `woken` that its queue has work;
-- else counts the slot in `freed`.
local function hand_over(run, refs, task, queue, freed, woken)
  local l, g, r, from = string.match(refs, '^c(%d+):1:(%d+):0 >(%d+):()')
  if not l or not may_inherit then return release(run, refs, freed) end
  -- Found, not matched: a pattern tries each letter of the names behind it.
  local blank = string.find(refs, ' ', from, true)
  local gate, line, heir_key = KEYS[gate_keys_at + number[g]], line_of(number[l]), KEYS[run_keys_at + number[r]]
  local name = gate_of(number[l])
  local got = pcall('HMGET', heir_key, 'open', 'spec', 'like')
  if got[3] ~= string.sub(refs, from, blank - 1) then return release(run, refs, freed) end
  -- Nearly all wait for their first delivery.
  local delivery, attempt = '1', '1'
  if got[1] ~= '1:#' .. name then
    delivery = string.match(got[1] or '', '^(%d+):#')
    if not delivery or got[1] ~= delivery .. ':#' .. name then return release(run, refs, freed) end
    attempt = call('HGET', heir_key, 'attempt') or '1'
  end
  -- Two are asked for: whoever holds the only slot is alone there, else the limit was lowered and nobody may follow.
  local held = call('ZPOPMIN', gate, 2)
  if held[1] ~= run or held[3] then
    for m = 1, #held, 2 do call('ZADD', gate, held[m + 1], held[m]) end
    return release(run, refs, freed)
  end
  local heir, first = run_of(heir_key), call('ZPOPMIN', line)
  if first[1] ~= heir then
    -- Somebody else is first by now: the gate is looked at in the ordinary way.
    if first[1] then call('ZADD', line, first[2], first[1]) end
    freed[l] = (freed[l] or 0) + 1
    return
  end
  call('ZADD', gate, now, heir)
  local told
  if blank < #refs then told = name .. ' >' .. string.sub(refs, blank + 1) else told = with_heirs(name, line) end
  if told == name then call('SREM', lines_key, name) end
  local token = emit(KEYS[wf_tasks_keys_at + task], heir, got[2], delivery, attempt, told)
  call('HSET', heir_key, 'open', delivery .. ':' .. token, 'gates', name)
  woken[queue] = true
end
