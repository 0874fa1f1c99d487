-- When it is, for an entry of the log whose script needs no other time: that stands in the entry's id, unless a test has moved the clock.
-- Needs home. Binds moment.
local moment = ''
if home[2] then
--- @include lib/now
  moment = now
end
