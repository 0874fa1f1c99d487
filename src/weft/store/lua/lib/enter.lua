local entered, n_held = {} -- how many gates of this call somebody held when that was asked, and which were entered since
-- How many hold a slot of a gate that lets one in. Mostly all such gates of a call are held, or none is, and that is asked once: nobody
-- gives a slot back in a call that starts runs.
local function held_at(gate)
  if not n_held then
    n_held = n_gate_keys <= 1000 and call('EXISTS', unpack(KEYS, gate_keys_at + 1, gate_keys_at + n_gate_keys)) or -1
  end
  if n_held == n_gate_keys then return 1 end
  return n_held == 0 and not entered[gate] and 0 or call('ZCARD', gate)
end
-- Lets a run that begins through its gates, or has it wait. Nearly all that have limits have one, which counts slots in a line without
-- turns (`c<line>:<n>:<gate>:0`, behind it perhaps how the run is like others): that is read at once, without looking for more. Needs
-- lib/gates and records. Returns what its ledger says of the gate it waits at (and, behind a blank, how it is like others) and, for a
-- rate, when that opens; or two times nothing and the gates it was let through.
local function enter(run, refs, priority, fair, lined)
  local l, n, g, from = string.match(refs, '^c(%d+):(%d+):(%d+):0()')
  local more = l and string.sub(refs, from, from + 1)
  if more ~= '' and more ~= ' =' then
    local at, turns, opens = blocked(run, refs, nil, true)
    if not at then
      n_held = -1 -- it may have entered any of them
      return nil, nil, pass(run, refs)
    end
    return queue_up(run, at, turns, opens, priority, fair, lined) .. likeness(refs), opens
  end
  local gate = KEYS[gate_keys_at + g]
  key_held = n == '1' and n_gate_keys > 1 and held_at(gate) or call('ZCARD', gate)
  local full = key_held >= number[n]
  if not full and is_waited(l) then
    call('SADD', admit_key, gate_of(l))
    full = true
  end
  if full then
    local gate = queue_up(run, l, 0, nil, priority, fair, lined)
    return more ~= '' and gate .. ' ' .. string.sub(refs, from + 2) or gate
  end
  call('ZADD', gate, now, run)
  if n_held then entered[gate] = true end
  return nil, nil, gate_of(l)
end
