-- What people set of a schedule; when it ticks next is its own affair.
local function as_set()
  return (call('HGET', schedule_key, 'spec') or '') .. (call('HGET', schedule_key, 'paused') or '')
end
