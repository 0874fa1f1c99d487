-- Puts a token in a queue stream and returns its entry id. A small spec rides along, so that a claim reads no run;
-- above 512 bytes the copy would cost more memory than the second read saves.
local function emit(stream, run, spec, delivery, attempt, gates)
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
-- epoch's field `fresh:<queue>:<priority>`; `fresh` counts them), and until a claim finds that all such are gone, every token whose key had none is
-- noted, and claims let it overtake; see lib/overtake. `held`: how many of its key are let through already; nothing: it has no
-- key; 1 for a token that comes again, which may be one of many. Needs lib/names.
local emit_in_turn
do
  local marked = {}
  function emit_in_turn(held, stream, ...)
    local token = emit(stream, ...)
    if not held or marked[stream] == (held > 0) then return token end
    local field = 'fresh:' .. id_of(stream, ':wf.tasks:')
    local mark = call('HGET', epoch_key, field)
    marked[stream] = held > 0 or mark ~= false
    if held > 0 then
      -- The last of them comes before `till`: written anew now and then, not with each.
      local ms = tonumber(string.match(token, '^%d+'))
      local since, till, rest = string.match(mark or token .. ' 0 0 0-0 1 1', '^(%S+) (%d+)(.*)$')
      if tonumber(till) < ms + 500 then call('HSET', epoch_key, field, string.format('%s %d%s', since, ms + 1000, rest)) end
      if not mark then call('HINCRBY', epoch_key, 'fresh', 1) end
    elseif mark then
      local rest, number = string.match(mark, '^(.* )(%d+)$')
      call('HSET', epoch_key, field .. ':' .. number, token, field, rest .. string.format('%d', number + 1))
    end
    return token
  end
end
