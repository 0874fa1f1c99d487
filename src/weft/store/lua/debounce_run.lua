#!lua
--- debounce_run: Gives a run that still waits for its delay newer arguments, and lets it wait anew.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers its timer moves
--- KEYS wake the timers' wake key
--- KEYS unique the record that names it
--- KEYS run the run that waits
--- KEYS blob[] the new input, when it is a blob
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who calls
--- ARGV spec:str what is asked for now
--- ARGV delay_ms:int how long it waits from now
--- ARGV record_ms:int how long the record is kept
--- ERRS epoch_missing stale_epoch
--- RETURNS `waits`, `gone` when it no longer does or is another one, `blob_gone`
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
local run = run_of(run_key)
local got = call('HMGET', run_key, 'open', 'seq', 'more')
if call('GET', unique_key) ~= run or not string.find(got[1] or '', '^1:@') then return 'gone' end
for b = 1, n_blob_keys do
  if call('PERSIST', KEYS[blob_keys_at + b]) == 0 and call('PTTL', KEYS[blob_keys_at + b]) == -2 then return 'blob_gone' end
end
local seq, due = (got[2] or 1) + 1, string.format('%d', now_ms + delay_ms)
note(run, seq, 'debounced', 'due=' .. due, spec)
call('HSET', run_key, 'spec', spec, 'open', '1:@' .. due, 'seq', seq, 'more', point(got[3], write_log()))
call('ZADD', timers_key, due, 'open:' .. run)
call('PEXPIRE', unique_key, record_ms)
wake(wake_key)
return 'waits'
