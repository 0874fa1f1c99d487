-- Priorities in use: a claim looks at the streams of those alone that tokens of the partition ever had (the epoch's field `levels`, from
-- high to low; absent: any). Whoever emits the first of a priority notes it. The usual one stands there from the beginning. Needs home.
local note_level, leveled -- the stream that was looked at last
do
  local noted = {}
  function note_level(stream)
    leveled = stream
    if noted[stream] or not home[6] then return end
    noted[stream] = true
    local level, levels = string.match(stream, '%d+$'), {}
    if string.find(' ' .. home[6] .. ' ', ' ' .. level .. ' ', 1, true) then return end
    for one in string.gmatch(home[6] .. ' ' .. level, '%d+') do levels[#levels + 1] = tonumber(one) end
    table.sort(levels, function(one, other) return one > other end)
    home[6] = table.concat(levels, ' ')
    call('HSET', epoch_key, 'levels', home[6])
  end
end
