#!lua flags=allow-oom
--- purge_letters: Deletes dead letters: the failed runs, their inputs and their place in the index.
--- KEYS epoch the partition's epoch
--- KEYS dlq the index
--- KEYS run[] one per item
--- KEYS blob[] inputs the items point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV item{input:int}[] 0: the input is kept inside the run
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `purged`, `other` (it did not fail: nothing is touched) or `gone`
--- @include lib/fence
local reply = {}
for i = 1, n_item do
  local run_key, input = KEYS[run_keys_at + i], item(i)
  local got = call('HMGET', run_key, 'open', 'status')
  if got[1] and (got[2] ~= 'failed' or string.sub(got[1], 1, 1) ~= '=') then
    reply[i] = 'other'
  else
    call('DEL', run_key)
    if input > 0 then call('DEL', KEYS[blob_keys_at + input]) end
    local _, colon = string.find(run_key, ':run:', 1, true)
    call('ZREM', dlq_key, string.sub(run_key, colon + 1))
    reply[i] = got[1] and 'purged' or 'gone'
  end
end
return reply
