#!lua flags=allow-oom
--- claim_steps: Hands tokens to a worker session, highest priority first, up to its free slots.
--- KEYS epoch the partition's epoch
--- KEYS session the claimer's session; a tombstone refuses
--- KEYS wake[] one per queue, pushed again when work is left behind
--- KEYS wf.tasks[] the queues' streams, as many of each as there are levels, in the order they are to be emptied
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV levels:str the priorities that the caller takes to be in use, from high to low
--- ARGV group:str consumer group
--- ARGV consumer:str session id
--- ARGV room:int how many tokens the worker can take
--- ARGV aging_ms:int a token counts one priority more for each of these it has waited; 0: priorities are strict
--- ARGV after:str `>` for new tokens, an entry id to list the session's own pending ones after it
--- ERRS epoch_missing stale_epoch stale_controls session_lost
--- RETURNS `levels` and those that are in use, if others are; else now_ms, then each token in one piece: stream index, entry id, run id, `<delivery>:<attempt>`, behind it the gates it passed and, after `>`, its heirs (see lib/heirs), all with blanks between; in a new line its spec (empty: read it from the run); of an entry that is no token only the first two
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/wake
if call('GET', session_key) == 'dead' then return redis.error_reply('WEFT session_lost') end
-- Old partitions do not tell: any may be in use.
local in_use = home[6] or '10 9 8 7 6 5 4 3 2 1'
if levels ~= in_use then return {'levels', in_use} end
local n_levels = #levels == 1 and 1 or select(2, string.gsub(levels, ' ', '')) + 1
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
-- `place`: the stream's index, as text. What somebody else put in the stream is told as such, and must not keep others from their work.
local function tell_token(place, token, fields)
  if fields[1] ~= 'r' or fields[3] ~= 's' then return place .. ' ' .. token end
  return place .. ' ' .. token .. ' ' .. fields[2] .. ' ' .. (fields[6] or '1:1') .. '\n' .. fields[4]
end
--- @include lib/overtake
-- Takes up to n tokens of one stream; returns how many there were.
local function take(s, n)
  local stream, taken = KEYS[wf_tasks_keys_at + s], 0
  -- In-flight entries stay in the stream until they are committed, so an empty stream has nothing to give.
  if n > 0 and call('XLEN', stream) > 0 then
    local overtook = overtake and overtake(s, stream, n)
    local got = not overtook and pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', n, 'STREAMS', stream, after)
    if got and got.err then
      -- The group is made by the first reader, from the stream's beginning, so that starting a run needs no group.
      call('XGROUP', 'CREATE', stream, group, '0')
      got = call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', n, 'STREAMS', stream, after)
    end
    if got and got[1] then
      local tokens, at, place = got[1][2], #reply, string.format('%d', s)
      for t = 1, #tokens do
        local token = tokens[t]
        local fields = token[2]
        if fields then
          taken = taken + 1
          reply[at + taken] = tell_token(place, token[1], fields)
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
-- The priority that the oldest waiting token of a stream counts with, or nothing when none waits.
local function aged(s)
  local stream = KEYS[wf_tasks_keys_at + s]
  if call('XLEN', stream) == 0 then return end
  local head = call('XRANGE', stream, '(' .. (last_read(stream) or '0-0'), '+', 'COUNT', 1)[1]
  if not head then return end
  local waited = time[1] * 1000 + math.floor(time[2] / 1000) - string.match(head[1], '^%d+')
  return string.match(stream, '%d+$') + math.floor(math.max(0, waited) / aging_ms)
end
if aging_ms == 0 or after ~= '>' then
  for queue = 1, n_wf_tasks_keys, n_levels do
    local last, there = queue + n_levels - 1, n_levels
    -- Most queues use few of the priorities: who knows how many streams there are need not look at the others.
    if there > 2 then there = call('EXISTS', unpack(KEYS, wf_tasks_keys_at + queue, wf_tasks_keys_at + last)) end
    for s = queue, last do
      if there == 0 or room <= 0 then break end
      if take(s, room) > 0 then there = there - 1 end
    end
  end
else
  for queue = 1, n_wf_tasks_keys, n_levels do
    local best, most
    -- A few at a time: the next of this stream may be younger than what waits in another.
    repeat
      best, most = nil, nil
      for s = queue, queue + n_levels - 1 do
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
