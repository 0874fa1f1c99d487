#!lua flags=allow-oom
--- release_graph: Lets what an ended graph or workflow run left go early, because the archive has it. What expires sooner is left alone.
--- KEYS epoch the partition's epoch
--- KEYS timers a run that is still put away has one
--- KEYS run[] the run; behind it the step that is its parent, if it has one
--- KEYS context[] what its nodes gave
--- KEYS arrivals[] who has come to its joins
--- KEYS tasklog[] what its steps logged
--- KEYS belongings[] what goes with it
--- KEYS signals[] its signals
--- KEYS undo[] what could be undone
--- KEYS journal[] what its code was told
--- KEYS mail[] what its code was not told
--- KEYS updates[] what it was asked
--- KEYS approval[] what people were asked
--- KEYS blob[] large values
--- KEYS map[] its maps
--- KEYS items[] their items
--- KEYS results[] what those gave
--- ARGV epoch:str the epoch the caller knows
--- ARGV seq:str the newest event that is archived
--- ARGV hot_ms:int how long all this is kept from now on
--- ARGV logged:str how many log lines are archived; empty: none
--- ARGV whole:int 1: the run itself goes too; 0: it stays, a dead letter
--- ERRS epoch_missing stale_epoch
--- RETURNS `released`, `kept` (it went on meanwhile), `gone`, `closing` (what it left is still put away), `awaited` (its parent has not seen how it ended) or `logged <lines>` (those are not archived)
--- @include lib/fence
--- @include lib/now
--- @include lib/names
local run_key = KEYS[run_keys_at + 1]
local got = call('HMGET', run_key, 'open', 'seq', 'logged', 'away')
if not got[1] then return 'gone' end
if string.sub(got[1], 1, 1) ~= '=' or (got[2] or '1') ~= seq then return 'kept' end
if call('ZSCORE', timers_key, 'close:' .. run_of(run_key)) then return 'closing' end
if (got[3] or '') ~= logged then return 'logged ' .. (got[3] or '') end
if n_run_keys > 1 then
  local above = call('HGET', KEYS[run_keys_at + 2], 'open')
  if above and string.sub(above, 1, 1) ~= '=' then return 'awaited' end
end
-- Until when all of it stands, by the server's own clock, like what expires: what many calls let go is whole until the first of it goes.
if not got[4] then
  call('HSET', run_key, 'away', string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000) + hot_ms))
end
-- All but the timers' and, of a dead letter, the run's own.
for k = run_keys_at + 1, #KEYS do
  local is_run = k > run_keys_at and k <= run_keys_at + n_run_keys
  if not is_run or (k == run_keys_at + 1 and whole == 1) then call('PEXPIRE', KEYS[k], hot_ms, 'LT') end
end
return 'released'
