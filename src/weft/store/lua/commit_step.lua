#!lua flags=allow-oom
--- commit_step: Ends one attempt that has completed and leaves nothing behind: what a worker without load sends. The short way of commit_steps.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS wf.tasks the stream its token is in
--- KEYS run the run
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV run:str its id
--- ARGV ledger:str what its run must have open
--- ARGV token:str the entry in the stream
--- ARGV keep_ms:str how long the finished run is kept
--- ARGV started_ms:str when the attempt began
--- ARGV value:str its result
--- ERRS epoch_missing stale_epoch
--- RETURNS `ok`, or `wide`: nothing was done, commit_steps knows what to do with it
--- @include lib/fence
--- @include lib/moment
--- @include lib/closed
local got = pcall('HMGET', run_key, 'open', 'seq', 'watch', 'attempt', 'deadline')
if got[1] ~= ledger or got[5] or call('XACK', wf_tasks_key, group, token) == 0 then return 'wide' end
local seq = string.format('%d', (got[2] or 1) + 1)
local event = seq .. '|completed|attempt=' .. (got[4] or '1') .. ',started=' .. started_ms .. '|' .. value
call('XDEL', wf_tasks_key, token)
local at = string.match(call('XADD', log_key, '*', 'at', moment, 'by', by, run, event), '^%d+')
close_run(run_key, ledger, seq, at, started_ms, value)
call('PEXPIRE', run_key, keep_ms)
-- As lib/tell frames it: one run has ended, so every channel gets the same.
for channel in string.gmatch(got[3] or '', '~?(%S+)') do
  call('PUBLISH', channel, run .. ' completed ' .. #value .. '\n' .. value)
end
return 'ok'
