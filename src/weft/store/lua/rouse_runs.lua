#!lua flags=allow-oom
--- rouse_runs: Lets runs go on that rested because no live worker could do them, and forgets those that do not rest any more.
--- KEYS epoch the partition's epoch
--- KEYS timers the timer service takes them through their gates
--- KEYS unserved where they stand
--- KEYS wake the timers' wake key
--- KEYS run[] one per item
--- ARGV epoch:str the epoch the caller knows
--- ARGV item{member:str delivery:str}[] as the index has it, and the delivery that it names
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `roused`, or `gone` (it does not rest)
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
local reply, roused = {}, false
for i = 1, n_item do
  local member, delivery = item(i)
  local run_key = KEYS[run_keys_at + i]
  local got = pcall('HMGET', run_key, 'open', 'promised')
  call('ZREM', unserved_key, member)
  reply[i] = 'gone'
  -- A token, or another wait, of the same run has another place or delivery; one that was rescheduled waits for its moment.
  if not got.err and got[1] and not got[2] and string.match(got[1], '^(%d+):@%d+$') == delivery then
    call('HSET', run_key, 'open', delivery .. ':@' .. now)
    call('ZADD', timers_key, now, 'open:' .. run_of(run_key))
    reply[i], roused = 'roused', true
  end
end
if roused then wake(wake_key) end
return reply
