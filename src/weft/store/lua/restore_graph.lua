#!lua flags=allow-oom
--- restore_graph: Writes a graph run as its events tell it: it goes on by the steps that were written before; or ends it, for somebody to retry.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for its deadline
--- KEYS run the graph run
--- KEYS context what its nodes gave
--- ARGV epoch:str the epoch under which the partition is rebuilt
--- ARGV by:str who restores it
--- ARGV spec:str msgpack: what was asked for
--- ARGV seq:int the newest event that is archived
--- ARGV born:str when the log told of its first event, in ms
--- ARGV deadline_ms:int when the whole run fails, in ms; 0: never
--- ARGV error:str msgpack: why it ends; empty: it goes on
--- ARGV keep_ms:int how long it is kept then
--- ARGV field{name:str value:str}[] what else its hash has
--- ERRS epoch_missing stale_epoch
--- RETURNS `restored` or `exists`
--- @include lib/rebuild
--- @include lib/now
--- @include lib/names
--- @include lib/log
local run = run_of(run_key)
if call('EXISTS', run_key) == 1 then return 'exists' end
if error ~= '' then
  note(run, text[seq + 1], 'failed', '', error)
else
  note(run, text[seq + 1], 'recovered', 'epoch=' .. epoch, '')
end
local at = write_log()
call('HSET', run_key, 'spec', spec, 'open', error ~= '' and '=1:*' or '1:*', 'born', born, 'seq', text[seq + 1], 'more', at)
for i = 1, n_field do call('HSET', run_key, field(i)) end
if error ~= '' then
  call('HSET', run_key, 'status', 'failed', 'error', error, 'ended', at)
  for _, key in ipairs({run_key, context_key}) do call('PEXPIRE', key, keep_ms) end
elseif deadline_ms > 0 then
  call('HSET', run_key, 'deadline', text[deadline_ms])
  call('ZADD', timers_key, text[deadline_ms], 'deadline:' .. run)
end
return 'restored'
