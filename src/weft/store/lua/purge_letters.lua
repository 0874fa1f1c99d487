#!lua flags=allow-oom
--- purge_letters: Deletes dead letters: the failed runs, their inputs, their log lines and their place in the index.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS dlq the index
--- KEYS run[] one per item
--- KEYS tasklog[] one per item: what it logged
--- KEYS blob[] inputs the items point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who acts for them
--- ARGV item{input:int act:str}[] input 0: it is kept inside the run; act: what somebody does, for the audit
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `purged`, `other` (it did not fail: nothing is touched) or `gone`
--- @include lib/fence
--- @include lib/now
--- @include lib/names
--- @include lib/log
--- @include lib/act
local reply = {}
for i = 1, n_item do
  local run_key, input, act = KEYS[run_keys_at + i], item(i)
  local got, run = call('HMGET', run_key, 'open', 'status', 'seq'), run_of(run_key)
  if got[1] and (got[2] ~= 'failed' or string.sub(got[1], 1, 1) ~= '=') then
    reply[i] = 'other'
  else
    if got[1] then
      -- Not what was there before: who purges wants it gone, and what the audit is told stays.
      tell_act(i, act, '', '')
      -- What the archive has of it is no dead letter any more either.
      note(run, text[(got[3] or 1) + 1], 'purged', '', '')
    end
    call('DEL', run_key, KEYS[tasklog_keys_at + i])
    if input > 0 then call('DEL', KEYS[blob_keys_at + input]) end
    call('ZREM', dlq_key, run)
    reply[i] = got[1] and 'purged' or 'gone'
  end
end
write_log()
return reply
