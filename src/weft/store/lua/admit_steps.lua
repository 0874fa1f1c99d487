#!lua flags=allow-oom
--- admit_steps: Lets the heads of lines through where there is room now; each is verified again.
--- KEYS epoch the partition's epoch
--- KEYS timers rates are looked at again when they open
--- KEYS queues names of queues in use
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item
--- KEYS gate[] what the references point at
--- KEYS line[] the lines that were looked at first, then others the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV looked:int how many lines were looked at
--- ARGV turns_of:str per looked line the number of its turns, separated by blanks
--- ARGV item{task:int queue:int at:int refs:str priority:int fair:str}[] heads of lines in order; at: its line
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS per item `admitted`, `moved` (waits at another gate), `blocked` or `gone`; then per looked line `more` or `done`
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/wake
--- @include lib/names
--- @include lib/emit
--- @include lib/gates
local reply, stopped, went, turns_at = {}, {}, {}, {}
for number in string.gmatch(turns_of, '%d+') do turns_at[#turns_at + 1] = tonumber(number) end
for i = 1, n_item do
  local task, queue, at, refs, priority, fair = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = run_of(run_key)
  local here = line_of(at)
  local score = call('ZSCORE', here, run)
  if stopped[at] then
    reply[i] = 'blocked'
  elseif not score then
    reply[i] = 'gone'
  else
    local got = call('HMGET', run_key, 'open', 'spec', 'attempt')
    local delivery, gate = string.match(got[1] or '', '^(%d+):#(.+)$')
    if gate ~= gate_of(at) then
      call('ZREM', here, run)
      reply[i] = 'gone'
    else
      local l, t, opens = blocked(run, refs, at)
      if l == at then
        stopped[at] = true
        if opens then
          call('ZADD', timers_key, 'LT', string.format('%d', opens), 'gate:' .. gate)
          wake(KEYS[wake_keys_at + 1])
        end
        reply[i] = 'blocked'
      else
        call('ZREM', here, run)
        if turns_at[at] > 0 then
          call('HSET', KEYS[turns_keys_at + turns_at[at]], '@' .. priority, string.format('%.0f', score % 281474976710656))
        end
        if l then
          -- As many go on from here to a later line as have room here: the rest would only come back, and out of order.
          local n, g, later = string.match(refs, 'c' .. at .. ':(%d+):(%d+)(.*)')
          if n and string.find(later, '%a' .. l .. ':') then
            went[at] = (went[at] or 0) + 1
            stopped[at] = went[at] >= n - call('ZCARD', KEYS[gate_keys_at + g])
          end
          call('HSET', run_key, 'open', delivery .. ':#' .. queue_up(run, l, t, opens, priority, fair))
          if opens then wake(KEYS[wake_keys_at + 1]) end
          reply[i] = 'moved'
        else
          local gates = pass(run, refs)
          local token = emit(KEYS[wf_tasks_keys_at + task], run, got[2], tonumber(delivery), got[3] or 1, gates)
          call('HSET', run_key, 'open', delivery .. ':' .. token, 'gates', gates)
          local wake_key = KEYS[wake_keys_at + queue]
          wake(wake_key)
          call('SADD', queues_key, id_of(wake_key, ':wake:'))
          reply[i] = 'admitted'
        end
      end
    end
  end
end
for l = 1, looked do
  local gate, left = gate_of(l), call('ZCARD', line_of(l))
  if left == 0 then
    call('SREM', lines_key, gate)
    if turns_at[l] > 0 then call('DEL', KEYS[turns_keys_at + turns_at[l]]) end
  end
  if left == 0 or stopped[l] then call('SREM', admit_key, gate) end
  reply[n_item + l] = (left == 0 or stopped[l]) and 'done' or 'more'
end
return reply
