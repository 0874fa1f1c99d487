#!lua flags=allow-oom
--- fire_timers: Emits the tokens that are due, each once; verifies every timer again before it fires.
--- KEYS epoch the partition's epoch
--- KEYS timers the due-index
--- KEYS queues names of queues in use
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV item{task:int queue:int refs:str priority:int fair:str seen:str}[] where each run's token goes, the gates before it, and the ledger by which the caller knows
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS per item: `fired`, `lined` (it waits at a gate), `early` (also when a newer call has changed it since) or `gone`
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/wake
--- @include lib/names
--- @include lib/emit
--- @include lib/gates
local reply, over, woken, used = {}, {}, {}, {}
for i = 1, n_item do
  local task, queue, refs, priority, fair, seen = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = run_of(run_key)
  local got = call('HMGET', run_key, 'open', 'spec', 'attempt', 'status', 'promised')
  local delivery, due = string.match(got[1] or '', '^(%d+):@(%d+)$')
  if not delivery then
    over[#over + 1] = 'open:' .. run
    reply[i] = 'gone'
  elseif tonumber(due) > now_ms or (seen ~= '' and seen ~= got[1]) then
    reply[i] = 'early'
  else
    over[#over + 1] = 'open:' .. run
    used[queue] = true
    if got[4] or got[5] then call('HDEL', run_key, 'status', 'promised') end
    local l, t, opens
    if refs ~= '' then l, t, opens = blocked(run, refs) end
    if l then
      call('HSET', run_key, 'open', delivery .. ':#' .. queue_up(run, l, t, opens, priority, fair) .. likeness(refs))
      if opens then woken[1] = true end
      reply[i] = 'lined'
    else
      local gates = refs ~= '' and pass(run, refs) or ''
      local token = emit_in_turn(refs ~= '' and key_held or nil, KEYS[wf_tasks_keys_at + task], run, got[2], delivery,
        got[3] or '1', gates)
      if gates ~= '' then call('HSET', run_key, 'open', delivery .. ':' .. token, 'gates', gates)
      else call('HSET', run_key, 'open', delivery .. ':' .. token) end
      woken[queue] = true
      reply[i] = 'fired'
    end
  end
end
-- Behind the tokens: should a write above fail, the timers of those that went before are found to be over by the next call.
if over[1] then call('ZREM', timers_key, unpack(over)) end
for queue in pairs(woken) do wake(KEYS[wake_keys_at + queue]) end
for queue in pairs(used) do call('SADD', queues_key, id_of(KEYS[wake_keys_at + queue], ':wake:')) end
return reply
