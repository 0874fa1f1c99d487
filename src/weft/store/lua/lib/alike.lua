-- What is alike in many steps that are committed together, made once. Needs packed, body, now_ms and lib/log. Binds `told`, `ways`, and the parts of
-- what is written that are a way's own: before and after what a step began with, in the context and in the log.
local told = cmsgpack.unpack(packed)
local ways, kept, begins, tails = told[2], {}, {}, {}
for w, way in ipairs(ways) do
  kept[w], begins[w] = 'completed ' .. way[1] .. ' 1 ', '|step_completed|step=' .. way[1] .. ',attempt=1,started='
  tails[w] = ',opened=' .. way[4] .. (way[7] ~= '' and ',asks=' .. way[7] or '') .. '|'
  way[8] = body(way[8])
end
-- When a step began, and how long it took, not when it ended: with that most values stay within the 64 bytes of a compact hash.
local spans = setmetatable({}, {__index = function(known, started)
  known[started] = started .. ' +' .. text[math.max(0, now_ms - started)] .. ' '
  return known[started]
end})
-- The number behind another.
local after = setmetatable({}, {__index = function(known, seq)
  known[seq] = text[seq + 1]
  return known[seq]
end})
