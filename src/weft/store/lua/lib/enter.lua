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
-- What `slots` says: how many there are, and how the run is like others, with the blank before it.
local most, like = setmetatable({}, {__index = function(known, slots)
  known[slots] = tonumber(string.match(slots, '^%d+'))
  return known[slots]
end}), setmetatable({}, {__index = function(known, slots)
  known[slots] = string.match(slots, ' .*$') or ''
  return known[slots]
end})
-- Lets a run that begins through its gates, or has it wait. Nearly all that have limits have one, which counts slots in a line without
-- turns: its number is all there is to read then (see start_runs). Needs lib/gates and records. Returns what its ledger says of the gate
-- it waits at (and, behind a blank, how it is like others) and, for a rate, when that opens; or two times nothing and the gates it was
-- let through.
local function enter(run, refs, slots, priority, fair, lined)
  if slots == '' then
    local at, turns, opens = blocked(run, refs, nil, true)
    if not at then
      n_held = -1 -- it may have entered any of them
      return nil, nil, pass(run, refs)
    end
    return queue_up(run, at, turns, opens, priority, fair, lined) .. likeness(refs), opens
  end
  local gate, n = KEYS[gate_keys_at + refs], most[slots]
  key_held = n == 1 and n_gate_keys > 1 and held_at(gate) or call('ZCARD', gate)
  local full = key_held >= n
  if not full and is_waited(refs) then
    call('SADD', admit_key, gate_of(refs))
    full = true
  end
  if full then return queue_up(run, refs, 0, nil, priority, fair, lined) .. like[slots] end
  if key_held > 0 then share_gate(refs, gate) end
  call('ZADD', gate, now, run)
  if n_held then entered[gate] = true end
  return nil, nil, gate_of(refs)
end
