#!lua flags=allow-oom
--- drop_definitions: Removes definitions of graphs that no run needs, unless somebody has come to need one since the caller began to look.
--- KEYS epoch the partition's epoch
--- KEYS definitions since when nobody needs them
--- KEYS ir[] one per item
--- ARGV epoch:str the epoch the caller knows
--- ARGV item{digest:str since:str}[] what the caller saw of each before it looked at all runs
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `dropped` or `needed`
--- @include lib/fence
local reply = {}
for i = 1, n_item do
  local digest, since = item(i)
  reply[i] = 'needed'
  -- Whoever starts or patches a run writes `0` here, in the same script.
  if since ~= '0' and call('HGET', definitions_key, digest) == since then
    call('DEL', KEYS[ir_keys_at + i])
    call('HDEL', definitions_key, digest)
    reply[i] = 'dropped'
  end
end
return reply
