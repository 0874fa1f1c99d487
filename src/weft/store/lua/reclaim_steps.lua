#!lua flags=allow-oom
--- reclaim_steps: Takes tokens from a dead session: each is emitted anew under a new entry, waits at its rate again, or ends as poison.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers a poisoned run's deadline is dropped; what has to pass a rate again goes by its timer
--- KEYS repair runs that cannot be read
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS dlq a poisoned run becomes a dead letter
--- KEYS session the dead session; it becomes a tombstone
--- KEYS wake[] the queue's wake key, then the timers'
--- KEYS wf.tasks[] the stream the tokens are pending in
--- KEYS run[] one per item, then the graph runs of those that are steps
--- KEYS blob[] inputs the items point at
--- KEYS unique[] records of calls that count as one, the items point at
--- KEYS tasklog[] one per item: its log lines, if there are any
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who sweeps
--- ARGV group:str consumer group
--- ARGV consumer:str id of the dead session
--- ARGV tombstone_ms:int how long the session is remembered as dead
--- ARGV max_crashes:int deaths charged to a run after which it is poison
--- ARGV poison:str msgpack: the error of a poisoned run
--- ARGV item{token:str keep_ms:int input:int refs:str unique:int above:int closes:int}[] entry ids, what a poisoned run leaves behind, and the number of a step's graph run; closes: 1 for a workflow run, which is put away
--- ERRS epoch_missing stale_epoch session_alive
--- RETURNS per item: `emitted`, `poisoned`, `stale` or `broken`
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/gates
--- @include lib/above
if call('GET', session_key) == 'alive' then return redis.error_reply('WEFT session_alive') end
call('SET', session_key, 'dead', 'PX', tombstone_ms)
local stream, reply, passed = KEYS[wf_tasks_keys_at + 1], {}, {}
for i = 1, n_item do
  local token, _, _, _, _, graph, flow = item(i)
  local run_key = KEYS[run_keys_at + i]
  local held = call('XPENDING', stream, group, token, token, 1)
  reply[i] = 'stale'
  if held[1] and held[1][2] == consumer then
    local got = pcall('HMGET', run_key, 'open', 'seq', 'watch', 'attempt', 'crashes', 'more', 'spec', 'deadline', 'gates', 'begun')
    call('XACK', stream, group, token)
    call('XDEL', stream, token)
    local delivery = got[1] and string.match(got[1], '^(%d+):')
    if got.err or not tonumber(got[2] or 1) or not tonumber(got[5] or 0) then
      -- The token goes all the same: it would keep the sweeper from every other step of the dead.
      call('ZADD', repair_key, 'NX', now, run_of(run_key))
      reply[i] = 'broken'
    elseif delivery and got[1] == delivery .. ':' .. token then
      local run, seq, crashes = run_of(run_key), (got[2] or 1) + 1, tonumber(got[5] or 0)
      -- The dead may have had a workflow run in hand and steps of it too, which are told of under the same numbers.
      local mine = flow > 0 and graph_above(run_key)
      if mine then
        mine.seq = mine.seq + 1
        seq = mine.seq
      end
      -- A death is counted for all its session had in hand: any of them may be the cause. Those that one more would make poison
      -- are suspects, which run one at a time and say when they begin, so that it is counted for the one that ran.
      local charged = crashes == 0 or crashes < max_crashes - 1 or got[10] == delivery
      if charged then crashes = crashes + 1 end
      local attempt, facts = got[4] or '1', 'session=' .. consumer .. ',crashes=' .. crashes
      if charged and crashes >= max_crashes then
        reply[i] = 'poisoned'
        note(run, seq, 'failed', facts, poison)
        if mine then above[run_key] = false end -- it is over: nothing comes behind that
      else
        reply[i] = 'emitted'
        note(run, seq, 'reclaimed', facts, '')
        tell_above(graph, run_key, 'reclaimed', 'attempt=' .. attempt .. ',' .. facts, '')
      end
      passed[#passed + 1] = {i, run, seq, crashes, delivery + 1, attempt, got}
    end
  end
end
local at, freed = write_log(), {}
write_above(at)
for _, pass in ipairs(passed) do
  local i, run, seq, crashes, delivery, attempt, got = unpack(pass, 1, 7)
  local _, keep_ms, input, refs, unique, _, closes = item(i)
  local run_key = KEYS[run_keys_at + i]
  if reply[i] == 'poisoned' then
    call('HSET', run_key, 'status', 'failed', 'error', poison, 'open', '=' .. got[1], 'seq', seq, 'ended', at,
      'crashes', crashes, 'by', consumer)
    if string.find(run, '/', 1, true) then
      -- A step of a graph run: the timer service tells its run.
      call('ZADD', timers_key, now, 'route:' .. run)
      wake(KEYS[wake_keys_at + 2])
    else
      call('ZADD', dlq_key, at, run)
      if closes > 0 then call('ZADD', timers_key, now, 'close:' .. run) end
    end
    call('PEXPIRE', run_key, keep_ms)
    call('PEXPIRE', KEYS[tasklog_keys_at + i], keep_ms)
    if input > 0 then call('PEXPIRE', KEYS[blob_keys_at + input], keep_ms) end
    if got[8] then call('ZREM', timers_key, 'deadline:' .. run) end
    release(run, refs, freed)
    if unique > 0 and call('GET', KEYS[unique_keys_at + unique]) == run then call('DEL', KEYS[unique_keys_at + unique]) end
    if got[3] then tell(got[3], run, 'failed', poison, true) end
  else
    local open
    if counts_starts(got[9]) then
      -- It may have begun. The timer service knows all its gates: it takes it through them, or puts it in line, like a retry.
      open = '@' .. now
      call('ZADD', timers_key, now, 'open:' .. run)
      release(run, refs, freed)
      call('HDEL', run_key, 'gates')
      wake(KEYS[wake_keys_at + 2])
    else
      open = emit_in_turn(got[9] and 1, stream, run, got[7], delivery, attempt, got[9])
      wake(KEYS[wake_keys_at + 1])
    end
    local last = above[run_key] and above[run_key].seq or seq
    call('HSET', run_key, 'open', delivery .. ':' .. open, 'seq', last, 'crashes', crashes, 'more', point(got[6], at))
    if got[3] then tell(got[3], run, 'reclaimed', '', false) end
  end
end
if mark_freed(freed) then wake(KEYS[wake_keys_at + 2]) end
send_news()
return reply
