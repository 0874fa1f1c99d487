#!lua
--- resolve_flow: Changes what the code of a workflow run is told when it is run again, or which version of it goes on; a run that waits because the two did not fit goes on.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers a run that goes on has no timer any more
--- KEYS queues names of queues in use
--- KEYS wake the wake key of its queue
--- KEYS wf.tasks the stream of its token
--- KEYS run the workflow run
--- KEYS journal what its code was told
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who decides
--- ARGV group:str consumer group
--- ARGV inbox:str prefix of the sessions' inboxes
--- ARGV ledger:str its ledger as the caller read it; empty: whatever it is, and it goes on when it would
--- ARGV length:int entries its journal must have; -1: any number
--- ARGV spec:str msgpack: its spec from now on; empty: as it is
--- ARGV facts:str facts of the event that tells of it
--- ARGV item{at:int header:str}[] entries that are told otherwise: place from 0, new header; their values stay
--- ERRS epoch_missing stale_epoch not_found
--- RETURNS `resolved`, `again` (it is not as the caller read it), or `ended <status>`
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/flows
local flow = read_flow(run_key)
if not flow.open then return redis.error_reply('WEFT not_found there is no run ' .. run_of(run_key)) end
if flow.ended then return 'ended ' .. (flow.status or 'completed') end
if ledger ~= '' and flow.open ~= ledger then return 'again' end
if length >= 0 and call('LLEN', journal_key) ~= length then return 'again' end
for i = 1, n_item do
  local at, header = item(i)
  local old = call('LINDEX', journal_key, at)
  call('LSET', journal_key, at, header .. string.sub(old, string.find(old, '\n', 1, true), -1))
end
-- Code that goes on with what it finds need not wait for what other code waited for: see `turn_id`.
if length >= 0 and flow.turn then call('HSET', run_key, 'turn', string.match(flow.turn, '^[^@]*')) end
if spec ~= '' then call('HSET', run_key, 'spec', spec) end
tell_of(flow, 'resolved', facts, '')
local at = write_log()
call('HSET', run_key, 'seq', flow.seq, 'more', point(flow.more, at), 'left', 1)
if ledger ~= '' then rouse(flow, wf_tasks_key, wake_key, group, inbox) end
send_news()
return 'resolved'
