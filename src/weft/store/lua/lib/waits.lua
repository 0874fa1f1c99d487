-- Steps that wait for something from outside: no token and no timer stands for them. Needs lib/now, wake, names, emit, and the keys
-- timers, queues. Their ledger is `<delivery>:?<what>`; the timer `wait:<step>`, if there is one, is when they are looked at again.
-- Gives such a step what it waited for: it gets a token again, and whoever claims it goes on.
local function settle(graph_key, step_key, open, given, stream, wake_key)
  local step, got = run_of(step_key), call('HMGET', step_key, 'spec', 'attempt')
  local delivery = string.match(open, '^%d+') + 1
  local token = emit(stream, step, got[1], delivery, got[2] or 1)
  call('HSET', step_key, 'open', delivery .. ':' .. token, 'given', given)
  call('HDEL', step_key, 'status', 'due')
  call('ZREM', timers_key, 'wait:' .. step)
  call('HINCRBY', graph_key, 'parked', -1)
  wake(wake_key)
  call('SADD', queues_key, id_of(wake_key, ':wake:'))
end
