#!lua flags=allow-oom
--- report_steps: Tells that steps are still running: notes their start and progress, and says which were lost.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS run[] one per item, then the graph runs of those that are steps
--- KEYS tasklog[] where the items' log lines go
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str session id of the worker
--- ARGV item{ledger:str started_ms:str progress:str logged:str}[] progress: `<fraction> <message>`, empty when there is none; logged: see lib/keep, likewise
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `ok` or `stale`
--- @include lib/fence
--- @include lib/now
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/keep
--- @include lib/above
-- A workflow run and steps of it may be told of in one call, under the same numbers.
local reply, passed, parents = {}, {}, {}
for i = 1, n_item do
  local _, _, _, logged = item(i)
  local number = string.match(logged, '^%d+%.(%d+)|')
  if number then parents[KEYS[run_keys_at + number] or ''] = true end
end
for i = 1, n_item do
  local ledger, started_ms, progress, logged = item(i)
  local run_key = KEYS[run_keys_at + i]
  local got = call('HMGET', run_key, 'open', 'seq', 'watch', 'more', 'started', 'attempt')
  if got[1] ~= ledger then
    reply[i] = 'stale'
  else
    reply[i] = 'ok'
    if logged ~= '' and not string.find(logged, '^%d+[.%d]*|1|$') then keep_logged(run_key, ledger, logged) end
    local mine = parents[run_key] and graph_above(run_key)
    local seq, run = mine and mine.seq or tonumber(got[2] or 1), run_of(run_key)
    local begins = got[5] ~= started_ms
    if begins then
      seq = seq + 1
      local facts = 'attempt=' .. (got[6] or '1') .. ',started=' .. started_ms
      note(run, seq, 'started', facts, '')
      tell_above(string.match(logged, '^%d+%.(%d+)|'), run_key, 'started', facts, '')
      if got[3] then tell(got[3], run, 'started', '', false) end
    end
    if progress ~= '' then
      seq = seq + 1
      note(run, seq, 'progress', '', progress)
      if got[3] then tell(got[3], run, 'progress', progress, false) end
    end
    if mine then mine.seq = seq end
    if begins or progress ~= '' then passed[#passed + 1] = {run_key, seq, got[4] or false, started_ms, progress} end
  end
end
local at = write_log()
write_above(at)
for _, pass in ipairs(passed) do
  local run_key, seq, more, started_ms, progress = unpack(pass)
  call('HSET', run_key, 'seq', above[run_key] and above[run_key].seq or seq, 'started', started_ms, 'more', point(more, at))
  if progress ~= '' then call('HSET', run_key, 'progress', progress) end
end
send_news()
return reply
