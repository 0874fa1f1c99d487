#!lua flags=allow-oom
--- watch_runs: Registers a channel with runs and says at once which of them have ended.
--- KEYS epoch the partition's epoch
--- KEYS run[] the runs
--- ARGV epoch:str the epoch the caller knows
--- ARGV channel:str told when a run ends; `~` in front: at every event
--- ERRS epoch_missing stale_epoch
--- RETURNS per run: status and value, empty status while it is open, `gone` when there is no such run
--- @include lib/fence
local reply = {}
for i = 1, n_run_keys do
  local run_key = KEYS[run_keys_at + i]
  local got = call('HMGET', run_key, 'open', 'status', 'result', 'error', 'watch', 'closed')
  if not got[1] then
    reply[2 * i - 1], reply[2 * i] = 'gone', ''
  elseif string.sub(got[1], 1, 1) == '=' then
    local status = got[6] and 'completed' or got[2]
    reply[2 * i - 1], reply[2 * i] = status, status ~= 'completed' and got[4] or got[3] or string.match(got[6], '^%d+ %d+ %d+ (.*)$')
  else
    local watch = got[5] or ''
    -- Beyond some 50 watchers the slow re-check has to do: the field must stay small.
    if #watch < 4000 and not string.find(' ' .. watch .. ' ', ' ' .. channel .. ' ', 1, true) then
      call('HSET', run_key, 'watch', watch == '' and channel or watch .. ' ' .. channel)
    end
    reply[2 * i - 1], reply[2 * i] = '', ''
  end
end
return reply
