-- Turns `<ms>` (from now) or `@<ms>` (a moment) into the ms at which something is due. Needs now_ms.
local function due_of(when)
  local moment = string.match(when, '^@(%d+)$')
  return moment and tonumber(moment) or now_ms + when
end
