#!lua flags=allow-oom
--- release_runs: Lets finished runs go early, because the archive has them. What expires sooner anyway is left alone.
--- KEYS epoch the partition's epoch
--- KEYS run[] one per item
--- KEYS blob[] their inputs and results, the items point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV hot_ms:int how long they are kept from now on
--- ARGV item{seq:str input:int output:int}[] seq: the newest event that is archived
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `released`, `kept` (it went on meanwhile, or has log lines, which are not archived) or `gone`
--- @include lib/fence
local reply = {}
for i = 1, n_item do
  local seq, input, output = item(i)
  local run_key = KEYS[run_keys_at + i]
  local got = pcall('HMGET', run_key, 'open', 'seq', 'logged')
  if got.err or not got[1] then
    reply[i] = 'gone'
  elseif string.sub(got[1], 1, 1) ~= '=' or (got[2] or '1') ~= seq or got[3] then
    reply[i] = 'kept'
  else
    call('PEXPIRE', run_key, hot_ms, 'LT')
    if input > 0 then call('PEXPIRE', KEYS[blob_keys_at + input], hot_ms, 'LT') end
    if output > 0 then call('PEXPIRE', KEYS[blob_keys_at + output], hot_ms, 'LT') end
    reply[i] = 'released'
  end
end
return reply
