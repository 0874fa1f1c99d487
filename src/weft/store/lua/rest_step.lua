#!lua flags=allow-oom
--- rest_step: Hands a claimed step back that no live worker can do: it rests until one registers that can, and nothing is written meanwhile.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers it is looked at again after a while, should nobody let it go on
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS unserved where it is found by what it needs
--- KEYS wake the timers' wake key
--- KEYS wf.tasks the stream of its token
--- KEYS run the run
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV ledger:str the ledger of its token
--- ARGV refs:str the gates whose slots it gives back
--- ARGV kept:str names of gates whose slots a workflow run has until its end, once it has begun
--- ARGV kept_refs:str the same, as references
--- ARGV needs:str `<queue> <name> <version>`: what a worker must have
--- ARGV rest_ms:int how long it rests at most
--- ARGV started_ms:str when its worker took it
--- ARGV reason:str why it is handed back
--- ERRS epoch_missing stale_epoch
--- RETURNS `rests`, or `stale`
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/gates
local got, run = call('HMGET', run_key, 'open', 'seq', 'watch', 'attempt', 'more', 'turn'), run_of(run_key)
local delivery, token = string.match(ledger, '^(%d+):(.+)$')
if got[1] ~= ledger or call('XACK', wf_tasks_key, group, token) == 0 then return 'stale' end
call('XDEL', wf_tasks_key, token)
local seq, freed, due = (got[2] or 1) + 1, {}, string.format('%d', now_ms + rest_ms)
delivery = string.format('%d', delivery + 1)
-- As far as its history goes it is offered again at once: nobody promised it a moment.
note(run, seq, 'returned', 'attempt=' .. (got[4] or '1') .. ',started=' .. started_ms .. ',after_ms=0', reason)
local at = write_log()
call('HSET', run_key, 'open', delivery .. ':@' .. due, 'seq', seq, 'more', point(got[5], at))
call('ZADD', timers_key, due, 'open:' .. run)
-- The delivery tells this rest from every other waiting of the run.
call('ZADD', unserved_key, 0, needs .. ' ' .. delivery .. ' ' .. run)
release(run, refs, freed)
if not got[6] then
  release(run, kept_refs, freed)
  kept = ''
end
if kept ~= '' then call('HSET', run_key, 'gates', kept) else call('HDEL', run_key, 'gates') end
if mark_freed(freed) then wake(wake_key) end
if got[3] then tell(got[3], run, 'returned', reason, false) end
send_news()
return 'rests'
