#!lua flags=allow-oom
--- commit_told: Tells workflow runs one thing each, and does nothing else: the short way of commit_flows.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS run[] the workflow runs
--- KEYS journal[] one per run
--- KEYS mail[] one per run
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str session id of the worker
--- ARGV packed:str msgpack, in one piece because so many arguments cost five times as much: one array, with six facts per run: id of the turn, ledger, entries its journal must have, header of the entry, type and facts of the event that tells of it
--- ARGV item{payload:str}[] payloads of the entries
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS the time, then how much mail waits for each run; -1: nothing was done, commit_flows knows what to do with it
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/names
--- @include lib/log
--- @include lib/tell
-- Whatever is not as usual (ended, told already, superseded, of a wrong type) is left to commit_flows, which knows all of that.
local facts, reply, told = cmsgpack.unpack(packed), {now}, {}
for i = 1, n_item do
  local turn, ledger, expect, header, event, about = unpack(facts, 6 * i - 5, 6 * i)
  local key, journal, payload, waiting = KEYS[run_keys_at + i], KEYS[journal_keys_at + i], item(i), -1
  local got = pcall('HMGET', key, 'open', 'turn', 'seq', 'more', 'watch', 'crashes', 'lived')
  if got[1] == ledger and got[2] ~= turn and not got[6] and not told[key] then
    local mails = pcall('LLEN', KEYS[mail_keys_at + i])
    local length = type(mails) == 'number' and pcall('RPUSH', journal, now .. ' ' .. header .. '\n' .. payload)
    if length == expect + 1 - (got[7] or 0) then
      local run, seq = run_of(key), (got[3] or 1) + 1
      waiting = mails
      note(run, seq, event, about, payload)
      if got[5] then tell(got[5], run, event, payload, false) end
      told[key] = {seq, turn, got[4]}
    elseif type(length) == 'number' then
      -- It was written by somebody else meanwhile: out again, as if it had not been told.
      call('RPOP', journal)
    end
  end
  reply[i + 1] = waiting
end
local at = write_log()
for key, now_is in pairs(told) do call('HSET', key, 'seq', now_is[1], 'turn', now_is[2], 'more', point(now_is[3], at)) end
send_news()
return reply
