#!lua flags=allow-oom
--- resume_run: Lets a paused graph run go on: its gate is taken away, and whoever waits there is let through.
--- KEYS epoch holds the version of the controls
--- KEYS log the partition's log
--- KEYS controls what is set
--- KEYS admit gates to be looked at
--- KEYS wake the timers' wake key
--- KEYS timers for passing it on
--- KEYS run[] the graph run; then the one it belongs to, when that one goes on and paused it
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who resumes it
--- ARGV name:str under which the controls know it
--- ARGV gate:str where its steps wait
--- ARGV spreads:int 1: its children that were paused with it go on too
--- ARGV ended:int 1: only what is left of the pause of a run that has ended
--- ERRS epoch_missing stale_epoch not_found
--- RETURNS the status the run has now, and `1` when this call resumed it
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
local run_key = KEYS[run_keys_at + 1]
local run = run_of(run_key)
local got = call('HMGET', run_key, 'open', 'seq', 'watch', 'status', 'more', 'paused')
if n_run_keys > 1 then
  -- Who passes it on may be late: it was paused again meanwhile. And what others have paused stays so.
  local above = KEYS[run_keys_at + 2]
  local own = got[6] and string.match(got[6], ' (.*)$') == 'run ' .. run_of(above)
  if not own or call('HEXISTS', above, 'paused') == 1 then return {got[6] and 'paused' or 'running', '0'} end
end
-- Who puts an ended run away may be late too: it was retried meanwhile, and paused anew.
if ended == 1 and got[1] and string.sub(got[1], 1, 1) ~= '=' then return {got[6] and 'paused' or 'running', '0'} end
-- Also for a run that has ended, or is gone: what stands in the controls would stay there.
if call('HDEL', controls_key, name) == 1 then
  call('HINCRBY', epoch_key, 'controls', 1)
  call('SADD', admit_key, gate)
  wake(wake_key)
end
if not got[1] then return redis.error_reply('WEFT not_found there is no run ' .. run) end
if got[6] then call('HDEL', run_key, 'paused') end
if string.sub(got[1], 1, 1) == '=' then return {got[4] or 'completed', '0'} end
if not got[6] then return {'running', '0'} end
local seq = (got[2] or 1) + 1
note(run, seq, 'resumed', '', '')
call('HSET', run_key, 'seq', seq, 'more', point(got[5], write_log()))
if got[3] then tell(got[3], run, 'resumed', '', false) end
if spreads == 1 then
  call('ZADD', timers_key, now, 'hold:' .. run)
  wake(wake_key)
end
send_news()
return {'running', '1'}
