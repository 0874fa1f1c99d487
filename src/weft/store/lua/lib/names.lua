-- The part of a key after its family. All keys of a call are of one partition: where the ids of a family begin is found once. In a block of
-- its own: large scripts are near the 200 locals that Lua allows.
local id_of, run_of
do
  local begins, from = {}
  function id_of(key, family)
    local at = begins[family]
    if not at then
      at = select(2, string.find(key, family, 1, true)) + 1
      begins[family] = at
    end
    return string.sub(key, at)
  end
  function run_of(key)
    from = from or select(2, string.find(key, ':run:', 1, true)) + 1
    return string.sub(key, from)
  end
end
