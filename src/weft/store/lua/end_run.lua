#!lua flags=allow-oom
--- end_run: Ends an open run from outside: cancelled by someone, or failed by its deadline. A running step is refused from here on.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers the run's timers are dropped
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS wake the timers' wake key
--- KEYS dlq a run that failed becomes a dead letter
--- KEYS wf.tasks the stream that may hold its token
--- KEYS run the run
--- KEYS tasklog its log lines, if there are any
--- KEYS blob[] its input, when it is a blob
--- KEYS unique[] its record, when calls like it count as one
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who ends it
--- ARGV group:str consumer group
--- ARGV kind:str cancelled or failed
--- ARGV value:str msgpack: the reason or the error
--- ARGV keep_ms:int how long the finished run is kept
--- ARGV due_before:str a deadline's timer must be due by then; empty for a cancel
--- ARGV refs:str the gates whose slots it holds
--- ARGV gates:str the names of those gates, or `#` and that of the one it waits at, as the caller saw them
--- ARGV seen:str its ledger as the caller saw it, when a newer call may have changed what it is to do since
--- ARGV inbox:str prefix of the sessions' inboxes
--- ARGV closes:str `1`: it leaves things that are put away, as a workflow run does
--- ERRS epoch_missing stale_epoch not_found
--- RETURNS the status the run has now, and `1` when this call ended it; `again` when it went through a gate or was changed meanwhile
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/gates
local got = call('HMGET', run_key, 'open', 'seq', 'watch', 'status', 'deadline', 'gates')
local run = run_of(run_key)
if not got[1] then
  call('ZREM', timers_key, 'open:' .. run, 'deadline:' .. run, 'end:' .. run)
  return redis.error_reply('WEFT not_found there is no run ' .. run)
end
if string.sub(got[1], 1, 1) == '=' then
  call('ZREM', timers_key, 'deadline:' .. run, 'end:' .. run)
  return {got[4] or 'completed', '0'}
end
if due_before ~= '' and (not got[5] or tonumber(got[5]) > now_ms) then return {got[4] or 'queued', '0'} end
local delivery, token = string.match(got[1], '^(%d+):(.+)$')
local facts = {}
local line = string.match(token, '^#(%S+)')
if (line and '#' .. line or got[6] or '') ~= gates or (seen ~= '' and seen ~= got[1]) then return {'again', '0'} end
if token == '*' or closes ~= '' then
  call('ZADD', timers_key, now, 'close:' .. run)
  wake(wake_key)
end
if token == '*' then -- its steps are ended one by one
elseif line then
  call('ZREM', line_of(1), run)
elseif string.sub(token, 1, 1) == '@' then
  call('ZREM', timers_key, 'open:' .. run)
elseif string.sub(token, 1, 1) == '?' then
  call('ZREM', timers_key, 'wait:' .. run)
else
  local held = pcall('XPENDING', wf_tasks_key, group, token, token, 1)
  if not held.err and held[1] then
    call('PUBLISH', inbox .. held[1][2], 'end ' .. run .. ' ' .. kind)
    call('HSET', run_key, 'by', held[1][2])
    facts[1] = 'session=' .. held[1][2]
    call('XACK', wf_tasks_key, group, token)
  end
  call('XDEL', wf_tasks_key, token)
end
if refs ~= '' then
  local freed = {}
  release(run, refs, freed)
  if mark_freed(freed) then wake(wake_key) end
end
call('ZREM', timers_key, 'deadline:' .. run, 'end:' .. run)
local seq = (got[2] or 1) + 1
-- Turns of a workflow are told of by no event of their own.
if closes ~= '' and delivery ~= '1' then facts[#facts + 1] = 'delivery=' .. delivery end
note(run, seq, kind, table.concat(facts, ','), value)
local at = write_log()
call('HSET', run_key, 'status', kind, 'error', value, 'open', '=' .. got[1], 'seq', seq, 'ended', at)
if kind == 'failed' and token ~= '*' then call('ZADD', dlq_key, at, run) end
call('PEXPIRE', run_key, keep_ms)
call('PEXPIRE', tasklog_key, keep_ms)
for b = 1, n_blob_keys do call('PEXPIRE', KEYS[blob_keys_at + b], keep_ms) end
for u = 1, n_unique_keys do
  if call('GET', KEYS[unique_keys_at + u]) == run then call('DEL', KEYS[unique_keys_at + u]) end
end
if got[3] then tell(got[3], run, kind, value, true) end
send_news()
return {kind, '1'}
