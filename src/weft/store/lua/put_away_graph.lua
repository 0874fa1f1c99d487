#!lua flags=allow-oom
--- put_away_graph: Lets what an ended graph run left expire with it; nothing happens to a run that was opened again meanwhile.
--- KEYS epoch the partition's epoch
--- KEYS timers the run's timer is dropped, and those of its maps
--- KEYS run the graph run
--- KEYS ledger its open steps: there are none any more
--- KEYS context what its nodes gave
--- KEYS arrivals who has come to its joins
--- KEYS tasklog what its steps logged
--- KEYS belongings what goes with it
--- KEYS signals its signals
--- KEYS undo what could be undone
--- KEYS approval[] what people were asked
--- KEYS blob[] large values
--- KEYS map[] its maps
--- KEYS items[] their items
--- KEYS results[] what those gave
--- ARGV epoch:str the epoch the caller knows
--- ARGV seq:int the newest event the caller saw
--- ARGV keep_ms:int how long it is kept
--- ARGV item{timer:str}[] timers of its maps
--- ERRS epoch_missing stale_epoch
--- RETURNS `1` when it was put away
--- @include lib/fence
--- @include lib/names
local got = call('HMGET', run_key, 'open', 'seq')
if not got[1] or string.sub(got[1], 1, 1) ~= '=' or tonumber(got[2] or 1) ~= seq then return '0' end
-- All of it here: once the timer is gone nobody looks after the run again.
for _, key in ipairs({context_key, arrivals_key, tasklog_key, belongings_key, signals_key, undo_key}) do call('PEXPIRE', key, keep_ms) end
for a = 1, n_approval_keys do call('PEXPIRE', KEYS[approval_keys_at + a], keep_ms) end
for b = 1, n_blob_keys do call('PEXPIRE', KEYS[blob_keys_at + b], keep_ms) end
for m = 1, n_map_keys do call('PEXPIRE', KEYS[map_keys_at + m], keep_ms) end
for i = 1, n_items_keys do call('PEXPIRE', KEYS[items_keys_at + i], keep_ms) end
for r = 1, n_results_keys do call('PEXPIRE', KEYS[results_keys_at + r], keep_ms) end
call('DEL', ledger_key)
for i = 1, n_item do call('ZREM', timers_key, (item(i))) end
call('ZREM', timers_key, 'close:' .. run_of(run_key))
return '1'
