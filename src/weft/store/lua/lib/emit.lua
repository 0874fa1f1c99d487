-- Puts a token in a queue stream and returns its entry id. A small spec rides along, so that a claim reads no run;
-- above 512 bytes the copy would cost more memory than the second read saves.
local function emit(stream, run, spec, delivery, attempt, gates)
  if #spec > 512 then spec = '' end
  if gates and gates ~= '' then
    return call('XADD', stream, '*', 'r', run, 's', spec, 'n', delivery .. ':' .. attempt .. ' ' .. gates)
  end
  -- Nearly all tokens are first ones: without the numbers they share the stream's field names and cost less.
  if delivery == 1 then return call('XADD', stream, '*', 'r', run, 's', spec) end
  return call('XADD', stream, '*', 'r', run, 's', spec, 'n', delivery .. ':' .. attempt)
end
