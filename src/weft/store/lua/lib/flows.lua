-- Workflow runs. Needs lib/now, wake, names, log, tell, emit, and the keys timers, queues. A flow is read once in a call, told of, and
-- written at its end. It is parked while its ledger is `<delivery>:@<due>` or `<delivery>:?flow`.
local flows = {}
local function read_flow(key)
  local got = pcall('HMGET', key, 'open', 'seq', 'more', 'watch', 'turn', 'crashes', 'deadline', 'status', 'left', 'logged', 'lived')
  local flow = {id = run_of(key), key = key}
  if got.err then
    flow.broken = true
  else
    flow.open, flow.seq, flow.more, flow.watch, flow.turn = got[1], tonumber(got[2] or 1), got[3], got[4], got[5]
    flow.crashes, flow.deadline, flow.status, flow.left = got[6], got[7], got[8], got[9] or got[10]
    flow.before = tonumber(got[11] or 0)
    flow.ended = flow.open and string.sub(flow.open, 1, 1) == '='
  end
  return flow
end
local function tell_of(flow, kind, facts, payload)
  flow.seq, flow.touched, flow.told = flow.seq + 1, true, true
  note(flow.id, flow.seq, kind, facts, payload)
  if flow.watch then tell(flow.watch, flow.id, kind, payload, false) end
end
-- A piece of mail has come: a parked flow gets a token, the worker that runs one is told. Who has not begun finds it there.
local function rouse(flow, stream, wake_key, group, inbox)
  local delivery, place = string.match(flow.open, '^(%d+):(.+)$')
  local first = string.sub(place, 1, 1)
  if first == '#' then return end
  if first == '@' or first == '?' then
    if not flow.turn then return end -- its start is delayed
    -- Gates that were left in this very call are not written yet.
    local got = call('HMGET', flow.key, 'spec', 'gates')
    local holds = flow.holds or got[2]
    local token = emit_in_turn(holds and holds ~= '' and 1, stream, flow.id, got[1], tonumber(delivery), 1, holds)
    flow.open = delivery .. ':' .. token
    call('HSET', flow.key, 'open', flow.open)
    call('HDEL', flow.key, 'status', 'awaits')
    call('ZREM', timers_key, 'open:' .. flow.id)
    wake(wake_key)
    call('SADD', queues_key, id_of(wake_key, ':wake:'))
  else
    local held = pcall('XPENDING', stream, group, place, place, 1)
    if not held.err and held[1] then call('PUBLISH', inbox .. held[1][2], 'mail ' .. flow.id .. ' -') end
  end
end
