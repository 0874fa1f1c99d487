#!lua
--- start_run: Accepts one run that asks for nothing but a token: what a client without load sends. The short way of start_runs.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS queues names of queues in use
--- KEYS wake its queue's
--- KEYS wf.tasks the stream of its queue and priority
--- KEYS run the run
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str who starts it
--- ARGV queue:str name of its queue
--- ARGV watch:str a channel told when the run ends; empty: none
--- ARGV run:str its id
--- ARGV spec:str what it is asked
--- ERRS epoch_missing stale_epoch stale_controls archive_behind
--- RETURNS `started`, or `exists` (a repeated call)
--- @include lib/fence
--- @include lib/moment
--- @include lib/behind
--- @include lib/controls
--- @include lib/levels
if call('EXISTS', run_key) == 1 then return 'exists' end
local born = string.match(call('XADD', log_key, '*', 'at', moment, 'by', by, run, '1|queued||' .. spec), '^%d+')
-- As in lib/emit: a large spec does not ride along.
local rides = #spec > 512 and '' or spec
local token = call('XADD', wf_tasks_key, 'NOMKSTREAM', '*', 'r', run, 's', rides)
if not token then
  -- The first token of its queue and priority: from now on both are known to be in use.
  token = call('XADD', wf_tasks_key, '*', 'r', run, 's', rides)
  note_level(wf_tasks_key)
  call('SADD', queues_key, queue)
end
local open = '1:' .. token
if watch == '' then call('HSET', run_key, 'spec', spec, 'open', open, 'born', born)
else call('HSET', run_key, 'spec', spec, 'open', open, 'born', born, 'watch', watch) end
-- Mostly somebody waits, and takes the pebble at once; otherwise one is enough.
if call('LPUSH', wake_key, '1') > 1 then call('LTRIM', wake_key, 0, 0) end
return 'started'
