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
--- ARGV after:str `>` for new tokens, an entry id to list the session's own pending ones after it
--- ERRS epoch_missing stale_epoch stale_controls session_lost
--- RETURNS now_ms, then per token: stream index, entry id, run id, spec (empty: read it from the run), `<delivery>:<attempt>`, gates passed
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/wake
if call('GET', session_key) == 'dead' then return redis.error_reply('WEFT session_lost') end
local reply = {now}
for s = 1, n_wf_tasks_keys do
  local stream = KEYS[wf_tasks_keys_at + s]
  -- In-flight entries stay in the stream until they are committed, so an empty stream has nothing to give.
  if room > 0 and call('XLEN', stream) > 0 then
    local got = pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', room, 'STREAMS', stream, after)
    if got and got.err then
      -- The group is made by the first reader, from the stream's beginning, so that starting a run needs no group.
      call('XGROUP', 'CREATE', stream, group, '0')
      got = call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', room, 'STREAMS', stream, after)
    end
    if got and got[1] then
      for _, token in ipairs(got[1][2]) do
        local fields = token[2]
        if fields then
          room = room - 1
          local n = #reply
          reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = s, token[1], fields[2], fields[4]
          reply[n + 5], reply[n + 6] = fields[6] or '1:1', fields[8] or ''
        else
          call('XACK', stream, group, token[1]) -- deleted behind our back: the reconciler emits it anew
        end
      end
    end
  end
end
if room == 0 and after == '>' then
  for w = 1, n_wake_keys do wake(KEYS[wake_keys_at + w]) end
end
return reply
