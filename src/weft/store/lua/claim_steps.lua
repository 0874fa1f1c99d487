#!lua flags=allow-oom
--- claim_steps: Hands tokens to a worker session, highest priority first, up to its free slots.
--- KEYS epoch the partition's epoch
--- KEYS session the claimer's session; a tombstone refuses
--- KEYS wake[] one per queue, pushed again when work is left behind
--- KEYS wf.tasks[] the queues' streams, in the order they are to be emptied
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV group:str consumer group
--- ARGV consumer:str session id
--- ARGV room:int how many tokens the worker can take
--- ARGV aging_ms:int a token counts one priority more for each of these it has waited; 0: priorities are strict
--- ARGV after:str `>` for new tokens, an entry id to list the session's own pending ones after it
--- ERRS epoch_missing stale_epoch stale_controls session_lost
--- RETURNS now_ms, then per token: stream index, entry id, run id, spec (empty: read it from the run), then `<delivery>:<attempt>`, behind it the gates it passed and, after `>`, its heirs (see lib/heirs)
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/wake
if call('GET', session_key) == 'dead' then return redis.error_reply('WEFT session_lost') end
local reply = {now}
-- The last token of a stream that was read in order; nothing when nobody has read it yet.
local function last_read(stream)
  local groups = pcall('XINFO', 'GROUPS', stream)
  for _, about in ipairs(groups.err and {} or groups) do
    local facts = {}
    for f = 1, #about, 2 do facts[about[f]] = about[f + 1] end
    if facts['name'] == group then return facts['last-delivered-id'] end
  end
end
--- @include lib/overtake
-- Takes up to n tokens of one stream; returns how many there were. `filled`: it is known not to be empty.
local function take(s, n, filled)
  local stream, taken = KEYS[wf_tasks_keys_at + s], 0
  -- In-flight entries stay in the stream until they are committed, so an empty stream has nothing to give.
  if n > 0 and (filled or call('XLEN', stream) > 0) then
    local overtook = overtake and overtake(s, stream, n)
    local got = not overtook and pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', n, 'STREAMS', stream, after)
    if got and got.err then
      -- The group is made by the first reader, from the stream's beginning, so that starting a run needs no group.
      call('XGROUP', 'CREATE', stream, group, '0')
      got = call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', n, 'STREAMS', stream, after)
    end
    if got and got[1] then
      local tokens, at = got[1][2], #reply
      for t = 1, #tokens do
        local token = tokens[t]
        local fields = token[2]
        if fields then
          taken = taken + 1
          reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = s, token[1], fields[2], fields[4]
          at = at + 5
          reply[at] = fields[6] or '1:1'
        else
          call('XACK', stream, group, token[1]) -- deleted behind our back: the reconciler emits it anew
        end
      end
    end
    if unmark and not overtook and taken < n then unmark(stream) end
    taken = overtook or taken
  end
  room = room - taken
  return taken
end
-- The priority that the oldest waiting token of a stream counts with, or nothing when none waits. Streams come ten to a queue,
-- from high to low.
local function aged(s)
  local stream = KEYS[wf_tasks_keys_at + s]
  if call('XLEN', stream) == 0 then return end
  local head = call('XRANGE', stream, '(' .. (last_read(stream) or '0-0'), '+', 'COUNT', 1)[1]
  if not head then return end
  local waited = time[1] * 1000 + math.floor(time[2] / 1000) - string.match(head[1], '^%d+')
  return 10 - (s - 1) % 10 + math.floor(math.max(0, waited) / aging_ms)
end
if aging_ms == 0 or after ~= '>' then
  -- Most queues use few of their priorities: who knows how many streams there are need not look at the others.
  for queue = 1, n_wf_tasks_keys, 10 do
    local last = math.min(queue + 9, n_wf_tasks_keys)
    local there = call('EXISTS', unpack(KEYS, wf_tasks_keys_at + queue, wf_tasks_keys_at + last))
    local usual = queue + 5
    -- One that uses only the usual priority is not looked for among the others.
    if there == 1 and usual <= last and call('XLEN', KEYS[wf_tasks_keys_at + usual]) > 0 then
      take(usual, room, true)
      there = 0
    end
    for s = queue, last do
      if there == 0 or room <= 0 then break end
      if take(s, room) > 0 then there = there - 1 end
    end
  end
else
  for queue = 1, n_wf_tasks_keys, 10 do
    local best, most
    -- A few at a time: the next of this stream may be younger than what waits in another.
    repeat
      best, most = nil, nil
      for s = queue, queue + 9 do
        local level = room > 0 and aged(s)
        if level and (not most or level > most) then best, most = s, level end
      end
      if best then take(best, math.min(room, 4)) end
    until not best or room == 0
  end
end
if room == 0 and after == '>' then
  for w = 1, n_wake_keys do wake(KEYS[wake_keys_at + w]) end
end
return reply
