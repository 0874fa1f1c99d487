#!lua flags=allow-oom
--- emit_lost_steps: Gives back their token to open runs that no stream entry, pending list or timer represents; who lost a slot too passes its gates again.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers timers that vanished are set again
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item
--- KEYS gate[] what the references point at
--- KEYS line[] the lines the items wait in, and what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who reconciles
--- ARGV group:str consumer group
--- ARGV item{task:int queue:int ledger:str line:int priority:int gates:str refs:str}[] the ledger the caller saw, the line it names (0: none), the gates it has passed and references to what it holds there
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `emitted`, `armed` (its timer, or one that takes it through its gates again), `lined` or `stale`
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/emit
--- @include lib/gates
-- Lost: the entry is gone; or it is there and undelivered no more, yet nobody holds it (its consumer was deleted).
local function lost(stream, token)
  if not call('XRANGE', stream, token, token)[1] then return true end
  local held = pcall('XPENDING', stream, group, token, token, 1)
  if held.err or held[1] then return false end
  local ms, n = string.match(token, '^(%d+)-(%d+)$')
  for _, about in ipairs(call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for f = 1, #about, 2 do facts[about[f]] = about[f + 1] end
    if facts['name'] == group then
      local last_ms, last_n = string.match(facts['last-delivered-id'], '^(%d+)-(%d+)$')
      ms, n, last_ms, last_n = tonumber(ms), tonumber(n), tonumber(last_ms), tonumber(last_n)
      return ms < last_ms or (ms == last_ms and n <= last_n)
    end
  end
  return false
end
-- Tells whether the run still has all it was let through with. A rate counts starts, and this would be another one.
local function entitled(run, gates, refs)
  if counts_starts(gates) then return false end
  for l, g in string.gmatch(refs, 'c(%d+):%d+:(%d+)') do
    local handed = call('HGET', heirs_key, gate_of(l)) == run
    if not call('ZSCORE', KEYS[gate_keys_at + g], handed and '>' or run) then return false end
  end
  return true
end
local reply, passed, freed = {}, {}, {}
for i = 1, n_item do
  local task, queue, ledger, line, priority, gates = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = run_of(run_key)
  local got = call('HMGET', run_key, 'open', 'seq', 'attempt', 'more', 'spec', 'gates')
  local delivery, token = string.match(ledger, '^(%d+):(.+)$')
  reply[i] = 'stale'
  if got[1] == ledger and string.sub(token, 1, 1) == '@' then
    if call('ZADD', timers_key, 'NX', string.sub(token, 2), 'open:' .. run) == 1 then
      wake(KEYS[wake_keys_at + 1])
      reply[i] = 'armed'
    end
  elseif got[1] == ledger and line > 0 then
    local line_key = KEYS[line_keys_at + line]
    if call('ZADD', line_key, 'NX', string.format('%.0f', (10 - priority) * 281474976710656), run) == 1 then
      nobody = false
      call('SADD', lines_key, id_of(line_key, ':line:'))
      call('SADD', admit_key, id_of(line_key, ':line:'))
      wake(KEYS[wake_keys_at + 1])
      reply[i] = 'lined'
    end
  elseif got[1] == ledger and (got[6] or '') == gates and lost(KEYS[wf_tasks_keys_at + task], token) then
    local seq = (got[2] or 1) + 1
    note(run, seq, 'recovered', 'lost=' .. token, '')
    passed[#passed + 1] = {i, run, seq, delivery + 1, got}
    call('XDEL', KEYS[wf_tasks_keys_at + task], token)
    reply[i] = 'emitted'
  end
end
local at = write_log()
for _, pass in ipairs(passed) do
  local i, run, seq, delivery, got = unpack(pass)
  local task, queue, _, _, _, gates, refs = item(i)
  local token
  if entitled(run, gates, refs) then
    token = emit_in_turn(got[6] and 1, KEYS[wf_tasks_keys_at + task], run, got[5], delivery, got[3] or 1, got[6])
    wake(KEYS[wake_keys_at + queue])
  else
    -- Somebody else may have its slot by now. The timer service takes it through all its gates, like a retry.
    token = '@' .. now
    call('ZADD', timers_key, now, 'open:' .. run)
    release(run, refs, freed)
    call('HDEL', KEYS[run_keys_at + i], 'gates')
    wake(KEYS[wake_keys_at + 1])
    reply[i] = 'armed'
  end
  call('HSET', KEYS[run_keys_at + i], 'open', delivery .. ':' .. token, 'seq', seq, 'more', point(got[4], at))
end
if mark_freed(freed) then wake(KEYS[wake_keys_at + 1]) end
return reply
