-- The part of a key after its family: a pattern with `$` would be tried from every letter of the key.
local function id_of(key, family)
  local _, colon = string.find(key, family, 1, true)
  return string.sub(key, colon + 1)
end
local function run_of(key) return id_of(key, ':run:') end
