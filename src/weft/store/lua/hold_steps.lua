#!lua flags=allow-oom
--- hold_steps: Takes claimed steps through gates that were set up after they were queued and spends their rates; what cannot pass goes back to wait.
--- KEYS epoch the partition's epoch
--- KEYS session the claimer's session; a tombstone refuses
--- KEYS log the partition's log
--- KEYS timers rates are looked at again when they open
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS wake[] the timers' wake key
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str session id of the worker
--- ARGV group:str consumer group
--- ARGV item{task:int ledger:str refs:str held:str priority:int fair:str}[] refs: gates still to pass; held: slots it has
--- ERRS epoch_missing stale_epoch stale_controls session_lost
--- RETURNS per item: `go <gates passed>`, `held` or `stale`
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/gates
-- The sweeper gives back the slots it saw; one that is taken behind its back would be lost.
if call('GET', session_key) == 'dead' then return redis.error_reply('WEFT session_lost') end
-- What was queued before is older than whatever arrived at the line, and in the order of its stream, whichever worker sends it back
-- first: its places are below all numbers of arrivals. To 256 tokens of one millisecond, and until the year 2041.
local function place_by_age(run, l, token, priority)
  local ms, n = string.match(token, '^(%d+)-(%d+)$')
  local age = math.min((ms - 1700000000000) * 256 + math.min(n, 255), 140737488355327)
  call('ZADD', line_of(l), 'XX', string.format('%.0f', (10 - priority) * 281474976710656 - 140737488355328 + age), run)
end
local reply, back, freed = {}, {}, {}
for i = 1, n_item do
  local task, ledger, refs, held, priority, fair = item(i)
  local run_key = KEYS[run_keys_at + i]
  local run = run_of(run_key)
  local got = pcall('HMGET', run_key, 'open', 'seq', 'watch', 'more', 'gates')
  local stream, token = KEYS[wf_tasks_keys_at + task], string.match(ledger, ':(.+)$')
  reply[i] = 'stale'
  if got.err then
    reply[i] = 'go ' -- its commit finds it broken and puts it up for repair; its neighbours go on
  elseif got[1] == ledger then
    local l, t, opens = blocked(run, refs)
    if not l then
      local gates = pass(run, refs, true)
      if got[5] and got[5] ~= '' then gates = gates == '' and got[5] or got[5] .. ' ' .. gates end
      if gates ~= (got[5] or '') then call('HSET', run_key, 'gates', gates) end
      reply[i] = 'go ' .. gates
    elseif call('XACK', stream, group, token) == 1 then
      call('XDEL', stream, token)
      release(run, held, freed)
      local seq = (got[2] or 1) + 1
      local gate = queue_up(run, l, t, opens, priority, fair)
      if t == 0 then place_by_age(run, l, token, priority) end
      if opens then wake(KEYS[wake_keys_at + 1]) end
      note(run, seq, 'held', 'gate=' .. gate, '')
      back[#back + 1] = {i, run, seq, string.match(ledger, '^%d+') + 1 .. ':#' .. gate, got}
      reply[i] = 'held'
    end
  end
end
local at = write_log()
for _, one in ipairs(back) do
  local i, run, seq, open, got = unpack(one)
  local run_key = KEYS[run_keys_at + i]
  call('HSET', run_key, 'open', open, 'seq', seq, 'more', point(got[4], at))
  call('HDEL', run_key, 'gates')
  if got[3] then tell(got[3], run, 'held', '', false) end
end
if mark_freed(freed) then wake(KEYS[wake_keys_at + 1]) end
send_news()
return reply
