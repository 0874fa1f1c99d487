-- Handing slots on. A run whose only limit is one of its key at a time carries in its token who stood behind it in line (after
-- `>`, behind the name of its gate), and its commit names the first of them, its heir, behind its references:
--   c<line>:1:<gate>:0 ><number of the heir's run key>:<likeness> <who comes behind the heir>
-- or says all that in parts (commit_bare), so that nothing has to be taken apart and put together again.
-- A start says how a run is like others (`=<likeness>`), which stands in its ledger while it waits (`1:#<gate> <likeness>`): an heir
-- that is like the one before it needs the same stream and the same limit, and nobody has to read it before. Once a slot was handed on, its gate has `>` in place of a run, and
-- the partition's heirs tell who that is: these are read and written once per call. Who comes in beside it puts the run back in its
-- place (share_gate): `>` is always alone. Needs lib/admit and controls. Binds
-- may_inherit: who does not know what operators have set since lets nobody through.
local may_inherit = (home[3] or '0') == controls
-- Slots that are to be handed on: numbers of line, gate and the heir's run key, the ledger of an heir that waits for its first
-- delivery, what its token tells of its gate (empty: nobody is known behind it); then the run that has it, its stream and wake key.
local plans, n_plans, inherited, n_inherited = {}, 0, {}, 0
-- Plans to hand the run's slot on; `heir`: the first five of these.
local function hand_on_to(run, heir, task, queue, freed)
  if not may_inherit then return release_slot(run, heir[1], heir[2], freed) end
  heir[6], heir[7], heir[8] = run, task, queue
  n_plans = n_plans + 1
  plans[n_plans] = heir
end
-- The same by references; who names no heir there gives its slots back.
local function hand_on(run, refs, task, queue, freed)
  local l, g, r, from = string.match(refs, '^c(%d+):1:(%d+):0 >(%d+):()')
  if not l then return release(run, refs, freed) end
  -- Found, not matched: a pattern tries each letter of the names behind it.
  local blank, gate = string.find(refs, ' ', from, true), gate_of(l)
  local told = blank < #refs and gate .. ' >' .. string.sub(refs, blank + 1) or ''
  hand_on_to(run, {l, g, r, '1:#' .. gate .. ' ' .. string.sub(refs, from, blank - 1), told}, task, queue, freed)
end
-- Tells whether a slot is the only one that is taken at its gate: else the limit was lowered, and nobody may follow.
local function is_alone(gate, holder)
  local held = call('ZRANGE', gate, 0, 1)
  return held[1] == holder and not held[2]
end
-- Gives a slot to the heir, if that is the first in line and there is room, and notes in `woken` that its queue has work; else gives
-- it back. `handed`: it was handed on before. `there`: no gate of this call is gone, as by an operator's hand.
local function hand_slot(plan, name, handed, there, freed, woken)
  local l, g, r, waits, told, run, task, queue = unpack(plan, 1, 8)
  local heir_key, line, gate = KEYS[run_keys_at + r], line_of(l), KEYS[gate_keys_at + g]
  local got = pcall('HMGET', heir_key, 'open', 'spec')
  -- Nearly all wait for their first delivery.
  local delivery, attempt = '1', '1'
  if got[1] ~= waits then
    delivery = string.match(got[1] or '', '^(%d+):#')
    if not delivery or got[1] ~= delivery .. string.sub(waits, 2) then return release_slot(run, l, g, freed) end
    attempt = call('HGET', heir_key, 'attempt') or '1'
  end
  if not (handed and there) and not is_alone(gate, handed and '>' or run) then return release_slot(run, l, g, freed) end
  local heir, first = run_of(heir_key), call('ZPOPMIN', line)
  if first[1] ~= heir then
    -- Somebody else is first by now: the gate is looked at in the ordinary way.
    if first[1] then call('ZADD', line, first[2], first[1]) end
    return release_slot(run, l, g, freed)
  end
  if not handed then
    call('ZREM', gate, run)
    call('ZADD', gate, 1, '>')
  end
  inherited[n_inherited + 1], inherited[n_inherited + 2] = name, heir
  n_inherited = n_inherited + 2
  if told == '' then
    told = with_heirs(name, line)
    if told == name then call('SREM', lines_key, name) end
  end
  local token = emit(KEYS[wf_tasks_keys_at + task], heir, got[2], delivery, attempt, told)
  call('HSET', heir_key, 'open', delivery .. ':' .. token, 'gates', name)
  woken[queue] = true
end
-- Does what was planned.
local function hand_all_on(freed, woken)
  if n_plans == 0 then return end
  local names, gates = {}, {}
  for i = 1, n_plans do names[i], gates[i] = gate_of(plans[i][1]), KEYS[gate_keys_at + plans[i][2]] end
  local holders, there = call('HMGET', heirs_key, unpack(names)), call('EXISTS', unpack(gates)) == n_plans
  for i = 1, n_plans do hand_slot(plans[i], names[i], holders[i] == plans[i][6], there, freed, woken) end
  if n_inherited > 0 then call('HSET', heirs_key, unpack(inherited)) end
end
