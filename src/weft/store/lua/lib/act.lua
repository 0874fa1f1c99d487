-- Tells the log what somebody did, unless nothing is to be told. Needs note. `before` and `after`: how it stood, how it stands.
local function tell_act(number, act, before, after)
  if act == '' then return end
  note('!', number, 'act', 'before=' .. #before .. ',after=' .. #after, before .. after .. act)
end
