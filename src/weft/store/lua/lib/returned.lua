-- Steps that are handed back again and again, to be offered later, because nobody has what it takes: the log tells of it once, not every
-- few seconds. Whoever moved on meanwhile (another turn, another attempt) or comes back for another reason is told of anew.
local function is_told_of(run_key, kind, after_ms, value)
  if kind ~= 'returned' or after_ms == '0' then return false end
  local got = call('HMGET', run_key, 'handed', 'turn', 'attempt')
  local why = (got[2] or '') .. ' ' .. (got[3] or '1') .. ' ' .. value
  if got[1] == why then return true end
  call('HSET', run_key, 'handed', why)
  return false
end
