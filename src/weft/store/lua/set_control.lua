#!lua flags=allow-oom
--- set_control: Sets or lifts something an operator decides, and has everything look again that may depend on it.
--- KEYS epoch holds the version of the controls
--- KEYS log is told of the act
--- KEYS controls what is set
--- KEYS admit gates to be looked at
--- KEYS wake[] the timers' wake key first, then those of queues that may go on
--- ARGV epoch:str the epoch the caller knows
--- ARGV name:str what is set: `pause:…`, `limit:…` or `strike:…`
--- ARGV value:str JSON; empty lifts it
--- ARGV by:str who acts for them
--- ARGV act:str what somebody does, for the audit; empty: it is told elsewhere
--- ARGV gate{name:str}[] gates whose lines may move now
--- ERRS epoch_missing stale_epoch
--- RETURNS `1` when that changed something
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/log
--- @include lib/act
local changed
local before = call('HGET', controls_key, name) or ''
if value == '' then
  changed = call('HDEL', controls_key, name)
else
  changed = before ~= value and 1 or 0
  call('HSET', controls_key, name, value)
end
if changed == 1 then
  call('HINCRBY', epoch_key, 'controls', 1)
  tell_act(1, act, before, value)
  write_log()
end
for i = 1, n_gate do call('SADD', admit_key, (gate(i))) end
for w = 1, n_wake_keys do wake(KEYS[wake_keys_at + w]) end
return changed
