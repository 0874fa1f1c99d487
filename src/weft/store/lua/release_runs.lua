#!lua flags=allow-oom
--- release_runs: Lets finished runs go early, because the archive has them. What expires sooner anyway is left alone.
--- KEYS epoch the partition's epoch
--- KEYS run[] one per item
--- KEYS blob[] their inputs and results, the items point at
--- KEYS tasklog[] their log lines, the items point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV hot_ms:int how long they are kept from now on
--- ARGV item{seq:str input:int output:int lines:int logged:str}[] seq: the newest event that is archived; logged: how many log lines are, empty: none
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `released`, `kept` (it went on meanwhile), `logged <lines>` (those are not archived) or `gone`
--- @include lib/fence
local reply = {}
for i = 1, n_item do
  local seq, input, output, lines, logged = item(i)
  local run_key = KEYS[run_keys_at + i]
  local got = pcall('HMGET', run_key, 'open', 'seq', 'logged', 'closed')
  if got.err or not got[1] then
    reply[i] = 'gone'
  elseif string.sub(got[1], 1, 1) ~= '=' or (string.match(got[4] or '', '^%d+') or got[2] or '1') ~= seq then
    reply[i] = 'kept'
  elseif (got[3] or '') ~= logged then
    reply[i] = 'logged ' .. (got[3] or '')
  else
    call('PEXPIRE', run_key, hot_ms, 'LT')
    if input > 0 then call('PEXPIRE', KEYS[blob_keys_at + input], hot_ms, 'LT') end
    if output > 0 then call('PEXPIRE', KEYS[blob_keys_at + output], hot_ms, 'LT') end
    if lines > 0 then call('PEXPIRE', KEYS[tasklog_keys_at + lines], hot_ms, 'LT') end
    reply[i] = 'released'
  end
end
return reply
