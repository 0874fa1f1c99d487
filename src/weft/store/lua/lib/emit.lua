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
-- Tokens are taken in the order they came, which is fair while no key has two. From the first that makes two of its key (told by the
-- epoch's field `fresh:<queue>:<priority>`, until a claim has emptied the stream) every token whose key had none is noted, and claims
-- let it overtake; see lib/overtake. `held`: how many of its key are let through already; nothing: it has no key. Needs lib/names.
local emit_in_turn
do
  local known = {}
  function emit_in_turn(held, stream, ...)
    local token = emit(stream, ...)
    if not held or known[stream] == (held > 0) then return token end
    local field = 'fresh:' .. id_of(stream, ':wf.tasks:')
    local mark = call('HGET', epoch_key, field)
    if held > 0 and not mark then
      call('HSET', epoch_key, field, token .. ' 0 0-0 1 1')
    elseif held == 0 and mark then
      local rest, number = string.match(mark, '^(.* )(%d+)$')
      call('HSET', epoch_key, field .. ':' .. number, token, field, rest .. string.format('%d', number + 1))
    end
    known[stream] = held > 0 or mark ~= false
    return token
  end
end
