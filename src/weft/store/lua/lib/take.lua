-- Takes the tokens of items, those of a stream by one call. `passed`: what is known of each item, its number first, its stream last (6) or told by
-- `stream_of`; `tokens`: of each stream. Returns the items that go on, the others get `stale`. That is the second refusal: nobody holds any token of a stream. One that is missing
-- among others goes on: a server that died forgot who claimed it, and its ledger says that nobody has ended it since.
local function take_tokens(passed, tokens, reply, stream_of)
  local lost
  for task, dead in pairs(tokens) do
    local stream = KEYS[wf_tasks_keys_at + task]
    if call('XACK', stream, group, unpack(dead)) > 0 then
      call('XDEL', stream, unpack(dead))
    else
      lost = lost or {}
      lost[task] = true
    end
  end
  if not lost then return passed end
  local taken = {}
  for _, known in ipairs(passed) do
    if lost[stream_of and stream_of(known) or known[6]] then reply[known[1]] = 'stale' else taken[#taken + 1] = known end
  end
  return taken
end
