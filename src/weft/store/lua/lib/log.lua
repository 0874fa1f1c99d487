-- Whole numbers as text. Lua turns each anew, slowly, and most of a call are the same few.
local text = setmetatable({}, {__index = function(known, n)
  known[n] = string.format('%d', n)
  return known[n]
end})
-- Packs the events of this call into one log entry. Needs log_key, now, by. An event is `<seq>|<type>|<facts>|<payload>`.
local entry, n_entry = {'at', now, 'by', by}, 4
local function note(run, seq, type, facts, payload)
  entry[n_entry + 1] = run
  n_entry = n_entry + 2
  entry[n_entry] = seq .. '|' .. type .. '|' .. facts .. '|' .. payload
end
-- Returns the milliseconds under which the log tells of this call: what runs keep as a pointer, short as a number.
local function write_log()
  if n_entry == 4 then return '' end
  return string.match(call('XADD', log_key, '*', unpack(entry)), '^%d+')
end
-- Adds a moment to a run's pointers into the log. Beyond some 200 of them the events are found by reading the log in between.
local function point(more, at)
  if not more then return at end
  if #more > 4000 then return more end
  return more .. ' ' .. at
end
