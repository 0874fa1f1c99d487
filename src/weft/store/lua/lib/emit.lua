-- Puts a token in a queue stream and returns its entry id. A small spec rides along, so that a claim reads no run;
-- above 512 bytes the copy would cost more memory than the second read saves.
--- @include lib/levels
local function emit(stream, run, spec, delivery, attempt, gates)
  if stream ~= leveled then note_level(stream) end
  if #spec > 512 then spec = '' end
  -- Nearly all tokens are first ones: without the numbers they share the stream's field names and cost less.
  local first = delivery == 1 or delivery == '1'
  if gates and gates ~= '' then
    local numbers = first and '1:1 ' or delivery .. ':' .. attempt .. ' '
    return call('XADD', stream, '*', 'r', run, 's', spec, 'n', numbers .. gates)
  end
  if first then return call('XADD', stream, '*', 'r', run, 's', spec) end
  return call('XADD', stream, '*', 'r', run, 's', spec, 'n', delivery .. ':' .. attempt)
end
-- Tokens are taken in the order they came, which is fair while no key has two. The first that makes two of its key marks its stream (the
-- epoch's field `fresh:<queue>:<priority>`; `fresh` counts them). Until a claim finds that all such are gone, every token whose key had
-- none is noted, and claims let it overtake; see lib/overtake. `held`: how many of its key are let through already; nothing: it has no
-- key; 1 for a token that comes again, which may be one of many. Needs lib/names.
local emit_in_turn
do
  local places = {}
  function emit_in_turn(held, stream, ...)
    local token = emit(stream, ...)
    if not held then return token end
    local place = places[stream]
    if not place then
      local field = 'fresh:' .. id_of(stream, ':wf.tasks:')
      place = {field = field, mark = call('HGET', epoch_key, field)}
      places[stream] = place
    end
    if held > 0 and not place.told then
      -- The last of them comes before `till`: written anew now and then, not with each.
      local ms = tonumber(string.match(token, '^%d+'))
      -- The numbers are long: with a value above 64 bytes the server keeps a hash as a table, where notes are found at once.
      local mark = place.mark or string.format('%s 0 0 0-0 %020d %020d', token, 1, 1)
      local since, till, rest = string.match(mark, '^(%S+) (%d+)(.*)$')
      if not place.mark then call('HINCRBY', epoch_key, 'fresh', 1) end
      if tonumber(till) < ms + 500 then
        place.mark = string.format('%s %d%s', since, ms + 1000, rest)
        call('HSET', epoch_key, place.field, place.mark)
      end
      place.told = true
    elseif held == 0 and place.mark then
      local rest, first, number = string.match(place.mark, '^(.* (%d+) )(%d+)$')
      if first == number and call('XLEN', stream) == 1 then
        -- It is alone: the last one left without a claim that came behind it.
        call('HDEL', epoch_key, place.field)
        call('HINCRBY', epoch_key, 'fresh', -1)
        place.mark = false
      else
        place.mark = rest .. string.format('%020d', number + 1)
        call('HSET', epoch_key, place.field .. ':' .. number, token, place.field, place.mark)
      end
    end
    return token
  end
end
