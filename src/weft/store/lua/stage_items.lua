#!lua
--- stage_items: Uploads items of a map before it begins. Whoever makes the key lets it expire; the map that begins keeps it.
--- KEYS epoch the partition's epoch
--- KEYS items the items of the map
--- ARGV epoch:str the epoch the caller knows
--- ARGV staging_ms:int how long they stay without a map
--- ARGV chunk{field:int data:str}[] msgpack: some items, by the number of their chunk
--- ERRS epoch_missing stale_epoch
--- RETURNS `1` when this call made the key
--- @include lib/fence
local made = call('EXISTS', items_key) == 0
for i = 1, n_chunk do
  local field, data = chunk(i)
  call('HSET', items_key, field, data)
end
if made then call('PEXPIRE', items_key, staging_ms) end
return made and 1 or 0
