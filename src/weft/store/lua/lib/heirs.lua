-- Handing slots on. A run whose only limit is one of its key at a time carries in its token who stood behind it in line (after
-- `>`, behind the name of its gate), and its commit names the first of them, its heir, behind its references:
--   c<line>:1:<gate>:0 ><number of the heir's run key>:<likeness> <who comes behind the heir>
-- A start says how a run is like others (`=<likeness>`), which stands in its ledger while it waits (`1:#<gate> <likeness>`): an heir
-- that is like the one before it needs the same stream and the same limit, and nobody has to read it before. Once a slot was handed on, its gate has `>` in place of a run, and
-- the partition's heirs tell who that is: these are read and written once per call. Needs lib/admit and controls. Binds
-- may_inherit: who does not know what operators have set since lets nobody through.
local may_inherit = (home[3] or '0') == controls
-- Eight values per slot that is to be handed on: a table for each would cost more than reading it.
local handing, n_handing, inherited = {}, 0, {}
-- Plans to hand the run's slot on; who names no heir gives it back.
local function hand_on(run, refs, task, queue, freed)
  local l, g, r, from = string.match(refs, '^c(%d+):1:(%d+):0 >(%d+):()')
  if not l or not may_inherit then return release(run, refs, freed) end
  local h, at = handing, n_handing
  h[at + 1], h[at + 2], h[at + 3], h[at + 4], h[at + 5] = run, refs, task, queue, line_of(l)
  h[at + 6], h[at + 7], h[at + 8] = KEYS[gate_keys_at + g], KEYS[run_keys_at + r], from
  n_handing = at + 8
end
-- Tells whether a slot is the only one that is taken at its gate: else the limit was lowered, and nobody may follow.
local function is_alone(gate, holder)
  local held = call('ZRANGE', gate, 0, 1)
  return held[1] == holder and not held[2]
end
-- Gives a slot to the heir, if that is the first in line and there is room, and notes in `woken` that its queue has work; else gives
-- it back. `handed`: it was handed on before. `alone`: all such slots are known to be alone at their gates.
local function hand_slot(at, name, handed, alone, freed, woken)
  local run, refs, task, queue, line, gate, heir_key, from = unpack(handing, at + 1, at + 8)
  -- Found, not matched: a pattern tries each letter of the names behind it.
  local blank = string.find(refs, ' ', from, true)
  local got, waits = pcall('HMGET', heir_key, 'open', 'spec'), ':#' .. name .. ' ' .. string.sub(refs, from, blank - 1)
  -- Nearly all wait for their first delivery.
  local delivery, attempt = '1', '1'
  if got[1] ~= '1' .. waits then
    delivery = string.match(got[1] or '', '^(%d+):#')
    if not delivery or got[1] ~= delivery .. waits then return release(run, refs, freed) end
    attempt = call('HGET', heir_key, 'attempt') or '1'
  end
  if not (handed and alone) and not is_alone(gate, handed and '>' or run) then return release(run, refs, freed) end
  local heir, first = run_of(heir_key), call('ZPOPMIN', line)
  if first[1] ~= heir then
    -- Somebody else is first by now: the gate is looked at in the ordinary way.
    if first[1] then call('ZADD', line, first[2], first[1]) end
    return release(run, refs, freed)
  end
  if not handed then
    call('ZREM', gate, run)
    call('ZADD', gate, 1, '>')
  end
  inherited[#inherited + 1] = name
  inherited[#inherited + 1] = heir
  local told
  if blank < #refs then told = name .. ' >' .. string.sub(refs, blank + 1) else told = with_heirs(name, line) end
  if told == name then call('SREM', lines_key, name) end
  local token = emit(KEYS[wf_tasks_keys_at + task], heir, got[2], delivery, attempt, told)
  call('HSET', heir_key, 'open', delivery .. ':' .. token, 'gates', name)
  woken[queue] = true
end
-- Does what was planned.
local function hand_all_on(freed, woken)
  if n_handing == 0 then return end
  local names, gates, n = {}, {}, 0
  for at = 0, n_handing - 8, 8 do names[at / 8 + 1] = id_of(handing[at + 5], ':line:') end
  local holders = call('HMGET', heirs_key, unpack(names))
  for i = 1, #names do
    if holders[i] == handing[8 * i - 7] then
      n = n + 1
      gates[n] = handing[8 * i - 2]
    end
  end
  gates[n + 1] = 'WITHSCORES'
  -- `>` scores one: if it is all that these gates have, and its sum is their number, then each has it and nothing else.
  local sum = n > 0 and call('ZUNION', n, unpack(gates)) or {}
  local alone = sum[1] == '>' and sum[2] == text[n] and not sum[3]
  for i = 1, #names do hand_slot(8 * i - 8, names[i], holders[i] == handing[8 * i - 7], alone, freed, woken) end
  if inherited[1] then call('HSET', heirs_key, unpack(inherited)) end
end
