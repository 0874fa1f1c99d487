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
