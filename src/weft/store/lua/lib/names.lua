-- The part of a key after its family: a pattern with `$` would be tried from every letter of the key.
local function id_of(key, family)
  local _, colon = string.find(key, family, 1, true)
  return string.sub(key, colon + 1)
end
-- All keys of a call are of one partition: where the ids of runs begin is found once.
local run_from
local function run_of(key)
  if not run_from then run_from = select(2, string.find(key, ':run:', 1, true)) + 1 end
  return string.sub(key, run_from)
end
