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
-- Tokens are taken in the order they came, which is fair while no key has two. The first that makes two of its key marks its stream
-- (field `fresh:<queue>:<priority>` of the epoch; `fresh` counts the marks) until a claim has emptied it, and from then on every token whose key had
-- none is noted, and claims let it overtake; see lib/overtake. `held`: how many of its key are let through already; nothing: it has
-- no key. Needs lib/names.
local emit_in_turn
do
  local marked = {}
  function emit_in_turn(held, stream, ...)
    local token = emit(stream, ...)
    if not held or marked[stream] == (held > 0) then return token end
    local field = 'fresh:' .. id_of(stream, ':wf.tasks:')
    local mark = call('HGET', epoch_key, field)
    marked[stream] = held > 0 or mark ~= false
    if held > 0 and not mark then
      call('HSET', epoch_key, field, token .. ' 0 0-0 1 1')
      call('HINCRBY', epoch_key, 'fresh', 1)
    elseif held == 0 and mark then
      local rest, first, number = string.match(mark, '^(.* (%d+) )(%d+)$')
      if first == number and call('XLEN', stream) == 1 then
        -- Nothing else is there: no claim came by since the last one left.
        call('HDEL', epoch_key, field)
        call('HINCRBY', epoch_key, 'fresh', -1)
        marked[stream] = false
      else
        call('HSET', epoch_key, field .. ':' .. number, token, field, rest .. string.format('%d', number + 1))
      end
    end
    return token
  end
end
