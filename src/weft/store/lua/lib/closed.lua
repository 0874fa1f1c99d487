-- Ends a task that has completed: its status, its result and three numbers are one field, since each more makes the whole end two hundredths dearer. A
-- longer result has its own: a server as shipped turns hashes with a value above 64 bytes into tables, which are twice as large.
local function close_run(run_key, ledger, seq, at, started_ms, value)
  local closed = seq .. ' ' .. at .. ' ' .. started_ms
  if #value > 32 then return pcall('HSET', run_key, 'open', '=' .. ledger, 'closed', closed, 'result', value) end
  return pcall('HSET', run_key, 'open', '=' .. ledger, 'closed', closed .. ' ' .. value)
end
