-- Signals of one run, in one hash: `?<name>` the steps that wait for it, in order; `#<name>` `<first> <next>` of those that arrived
-- before anybody waited, and `+<name> <n>` each of them; `=<request>` calls that were answered, the newest thousand, `@<n>` which.
-- Takes the oldest signal of a name that nobody has taken; nothing when there is none.
local function take_signal(key, name)
  local first, after = string.match(call('HGET', key, '#' .. name) or '', '^(%d+) (%d+)$')
  if not first then return end
  local field = '+' .. name .. ' ' .. first
  local value = call('HGET', key, field)
  call('HDEL', key, field)
  if first + 1 == tonumber(after) then call('HDEL', key, '#' .. name)
  else call('HSET', key, '#' .. name, string.format('%d %s', first + 1, after)) end
  return value
end
-- Lets a step wait no longer for a name.
local function leave_line(key, name, step)
  local left = {}
  for other in string.gmatch(call('HGET', key, '?' .. name) or '', '%S+') do
    if other ~= step then left[#left + 1] = other end
  end
  if #left == 0 then call('HDEL', key, '?' .. name) else call('HSET', key, '?' .. name, table.concat(left, ' ')) end
end
