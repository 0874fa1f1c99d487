#!lua
--- debounce_run: Gives a run that still waits for its delay newer arguments, and lets it wait anew.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers its timer and its deadline move
--- KEYS wake the timers' wake key
--- KEYS unique the record that names it
--- KEYS run the run that waits
--- KEYS blob[] the new input, when it is a blob, then the one it had, when that is another one
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who calls
--- ARGV spec:str what is asked for now
--- ARGV delay_ms:int how long it waits from now
--- ARGV deadline_ms:int how long it may take from now; 0: as long as it does
--- ARGV record_ms:int how long the record is kept
--- ARGV n_new:int how many of the blobs are new
--- ARGV seen:str the number of its newest event when the caller read which blob it had; empty: not read
--- ARGV staging_ms:int how long the blob it had stays: whoever archives its events reads it
--- ERRS epoch_missing stale_epoch
--- RETURNS `waits`, `gone` when it no longer does or is another one, `blob_gone`, `look` when it may have a blob that the caller did not read
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
local run = run_of(run_key)
local got = call('HMGET', run_key, 'open', 'seq', 'more', 'spec', 'promised')
-- One that was rebuilt waits under a later delivery, and has not begun either.
local delivery = string.match(got[1] or '', '^(%d+):@')
if call('GET', unique_key) ~= run or not delivery or delivery ~= '1' and not got[5] then return 'gone' end
-- A blob is named by its digest: what holds no such word has none, and most have none.
if seen == '' and string.find(got[4], string.rep('%x', 64)) or seen ~= '' and seen ~= (got[2] or '1') then return 'look' end
for b = 1, n_new do
  if call('PERSIST', KEYS[blob_keys_at + b]) == 0 and call('PTTL', KEYS[blob_keys_at + b]) == -2 then return 'blob_gone' end
end
local seq, due = (got[2] or 1) + 1, string.format('%d', now_ms + delay_ms)
note(run, seq, 'debounced', 'due=' .. due, spec)
call('HSET', run_key, 'spec', spec, 'open', delivery .. ':@' .. due, 'seq', seq, 'more', point(got[3], write_log()))
call('ZADD', timers_key, due, 'open:' .. run)
-- It is the newer call from here on, so the time of that one counts: by the first one's it might never begin.
if deadline_ms > 0 then
  local last = string.format('%d', now_ms + deadline_ms)
  call('ZADD', timers_key, last, 'deadline:' .. run)
  call('HSET', run_key, 'deadline', last)
else
  call('ZREM', timers_key, 'deadline:' .. run)
  call('HDEL', run_key, 'deadline')
end
for b = n_new + 1, n_blob_keys do call('PEXPIRE', KEYS[blob_keys_at + b], staging_ms) end
call('PEXPIRE', unique_key, record_ms)
wake(wake_key)
return 'waits'
