#!lua flags=allow-oom
--- reschedule_run: Moves the moment at which a run that waits for its delay, snooze or back-off goes on.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers the due-index
--- KEYS wake[] the timers' wake key
--- KEYS run[] the run
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who asks for it
--- ARGV when:str `<ms>` from now, or `@<ms>` for a moment; what is past is now
--- ERRS epoch_missing stale_epoch not_found conflict
--- RETURNS when it is due now, in ms
--- @include lib/fence
--- @include lib/now
--- @include lib/due
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
local run_key = KEYS[run_keys_at + 1]
local run = run_of(run_key)
local got = call('HMGET', run_key, 'open', 'seq', 'watch', 'status', 'more')
if not got[1] then return redis.error_reply('WEFT not_found there is no run ' .. run) end
local delivery = string.match(got[1], '^(%d+):@%d+$')
if not delivery then
  local ended = string.sub(got[1], 1, 1) == '='
  return redis.error_reply('WEFT conflict run ' .. run .. ' waits for no delay, so there is none to change: it '
    .. (ended and 'has ended (' .. (got[4] or 'completed') .. ')' or 'is queued or running'))
end
local due = string.format('%d', math.max(due_of(when), now_ms))
local seq = (got[2] or 1) + 1
note(run, seq, 'rescheduled', 'due=' .. due, '')
-- Due now, too, goes by the timer: it knows the queue and whatever else stands between a run and its token.
call('ZADD', timers_key, due, 'open:' .. run)
call('HSET', run_key, 'open', delivery .. ':@' .. due, 'seq', seq, 'more', point(got[5], write_log()))
if not got[4] then call('HSET', run_key, 'promised', '1') end
wake(KEYS[wake_keys_at + 1])
if got[3] then tell(got[3], run, 'rescheduled', '', false) end
send_news()
return due
