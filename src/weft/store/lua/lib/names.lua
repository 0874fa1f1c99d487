-- The part of a key after its family: a pattern with `$` would be tried from every letter of the key.
local function id_of(key, family)
  local _, colon = string.find(key, family, 1, true)
  return string.sub(key, colon + 1)
end
-- All keys of a call are of one partition: where the ids of runs begin is found once. In a block of its own: large scripts are
-- near the 200 locals that Lua allows.
local run_of
do
  local from
  function run_of(key)
    from = from or select(2, string.find(key, ':run:', 1, true)) + 1
    return string.sub(key, from)
  end
end
