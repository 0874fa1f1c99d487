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
local plans, n_plans, inherited = {}, 0, {}
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
-- Gives the slots to the heirs that are the first in line and have room, and notes in `woken` whose queues have work; gives the others back.
-- One kind of call after the other: all that a call runs through fits the processor's cache once, but not beside what four others do.
local function hand_all_on(freed, woken)
  local n = n_plans
  if n == 0 then return end
  local names, gates = {}, {}
  for i = 1, n do names[i], gates[i] = gate_of(plans[i][1]), KEYS[gate_keys_at + plans[i][2]] end
  local holders, there = call('HMGET', heirs_key, unpack(names)), call('EXISTS', unpack(gates)) == n
  local found, going, m = {}, {}, 0
  for i = 1, n do found[i] = pcall('HMGET', KEYS[run_keys_at + plans[i][3]], 'open', 'spec') end
  for i = 1, n do
    local plan, got = plans[i], found[i]
    -- Nearly all wait for their first delivery.
    local waits, gate, handed = got[1] == plan[4], gates[i], holders[i] == plan[6]
    if not waits then
      got[3] = string.match(got[1] or '', '^(%d+):#')
      waits = got[3] and got[1] == got[3] .. string.sub(plan[4], 2)
      got[4] = waits and call('HGET', KEYS[run_keys_at + plan[3]], 'attempt') or '1'
    end
    if not waits or not (handed and there) and not is_alone(gate, handed and '>' or plan[6]) then
      release_slot(plan[6], plan[1], plan[2], freed)
    else
      local line, heir = line_of(plan[1]), run_of(KEYS[run_keys_at + plan[3]])
      local first = call('ZPOPMIN', line)
      if first[1] == heir then
        if not handed then
          call('ZREM', gate, plan[6])
          call('ZADD', gate, 1, '>')
        end
        m = m + 1
        going[m] = i
        inherited[2 * m - 1], inherited[2 * m] = names[i], heir
      else
        -- Somebody else is first by now: the gate is looked at in the ordinary way.
        if first[1] then call('ZADD', line, first[2], first[1]) end
        release_slot(plan[6], plan[1], plan[2], freed)
      end
    end
  end
  for k = 1, m do
    local i = going[k]
    local plan, name, got = plans[i], names[i], found[i]
    local told = plan[5]
    if told == '' then
      told = with_heirs(name, line_of(plan[1]))
      if told == name then call('SREM', lines_key, name) end
    end
    local delivery = got[3] or '1'
    got[1] = delivery .. ':' .. emit(KEYS[wf_tasks_keys_at + plan[7]], inherited[2 * k], got[2], delivery, got[4] or '1', told)
    woken[plan[8]] = true
  end
  for k = 1, m do
    local i = going[k]
    call('HSET', KEYS[run_keys_at + plans[i][3]], 'open', found[i][1], 'gates', names[i])
  end
  if m > 0 then call('HSET', heirs_key, unpack(inherited, 1, 2 * m)) end
end
