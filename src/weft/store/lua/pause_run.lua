#!lua flags=allow-oom
--- pause_run: Pauses a graph run: a gate without slots before each of its steps, from the next claim on.
--- KEYS epoch holds the version of the controls
--- KEYS log the partition's log
--- KEYS controls what is set
--- KEYS timers for passing it on
--- KEYS wake the timers' wake key
--- KEYS run[] the graph run; then the one it belongs to, when that one's pause is passed on
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who pauses it
--- ARGV name:str under which the controls know it
--- ARGV value:str JSON: who, why and when, for the controls
--- ARGV reason:str why, for the log
--- ARGV most:int runs that may be paused at once
--- ARGV spreads:int 1: its own children are paused with it
--- ERRS epoch_missing stale_epoch not_found conflict
--- RETURNS the status the run has now, and `1` when this call paused it
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
local run_key = KEYS[run_keys_at + 1]
local run = run_of(run_key)
local got = call('HMGET', run_key, 'open', 'seq', 'watch', 'status', 'more', 'paused')
if not got[1] then return redis.error_reply('WEFT not_found there is no run ' .. run) end
if string.sub(got[1], 1, 1) == '=' then return {got[4] or 'completed', '0'} end
if string.match(got[1], ':(.*)$') ~= '*' then
  return redis.error_reply('WEFT conflict run ' .. run .. ' is one task: pause its task or its queue, or reschedule it')
end
if got[6] then return {'paused', '0'} end
-- Who passes on a pause may be late: it was resumed meanwhile.
if n_run_keys > 1 and call('HEXISTS', KEYS[run_keys_at + 2], 'paused') == 0 then return {'running', '0'} end
-- Every claim knows all controls: what many runs need is a pause of their queue or task.
if call('HLEN', controls_key) >= most then
  return redis.error_reply('WEFT conflict ' .. most .. ' things are paused, limited or struck already: pause a queue or a task instead')
end
call('HSET', controls_key, name, value)
call('HINCRBY', epoch_key, 'controls', 1)
local seq = (got[2] or 1) + 1
note(run, seq, 'paused', '', reason)
local at = write_log()
call('HSET', run_key, 'paused', at .. ' ' .. by, 'seq', seq, 'more', point(got[5], at))
if got[3] then tell(got[3], run, 'paused', reason, false) end
if spreads == 1 then
  call('ZADD', timers_key, now, 'hold:' .. run)
  wake(wake_key)
end
send_news()
return {'paused', '1'}
