#!lua
--- tick_schedules: Moves schedules on and starts the runs of their ticks, all in one, or changes nothing at all.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers for delays and deadlines, and for the schedules' next looks
--- KEYS queues names of queues in use
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item
--- KEYS blob[] staged inputs the items point at
--- KEYS idempotency[] records the items point at
--- KEYS unique[] records of calls that count as one, the items point at
--- KEYS gate[] what the references point at
--- KEYS line[] what the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- KEYS schedule[] one per move
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV by:str who starts them
--- ARGV dropped:str msgpack: the error of a call that was dropped
--- ARGV watch:str a channel told when one of these runs ends; empty: none
--- ARGV moves:str a line per schedule: revision it was read at, then its new next, timer, last, run, skipped, waits; `-` none, `=` as it is
--- ARGV item{spec:str* task:int queue:str delay_ms:str deadline_ms:str blob:str key:str digest:str window_ms:str refs:str? slots:str priority:int fair:str unique:str unique_ms:str keep_ms:str}[] the runs, as in start_runs
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS as start_runs; or `stale` and the numbers of the moves that were decided on an old revision or for a tick to come
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/due
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/emit
--- @include lib/gates
--- @include lib/enter
-- One script, because nothing weaker holds: were the run started first, under any key with an expiry, a scheduler that slept
-- longer than that could start it again; were the schedule moved first, a crash in between would lose the tick.
local fields, stale, decided, at = {'next', 'timer', 'last', 'run', 'skipped', 'waits'}, {'stale'}, {}, 0
for line in string.gmatch(moves, '[^\n]+') do
  at = at + 1
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  if call('HGET', KEYS[schedule_keys_at + at], 'rev') ~= words[1] or (tonumber(words[4]) or 0) > now_ms then
    stale[#stale + 1] = at
  end
  decided[at] = words
end
if stale[2] then return stale end
for s, words in ipairs(decided) do
  local schedule_key = KEYS[schedule_keys_at + s]
  local kept, gone = {'rev', string.format('%d', words[1] + 1)}, {}
  for f, field in ipairs(fields) do
    local word = words[f + 1]
    if field == 'timer' then
      local member = 'cron:' .. id_of(schedule_key, ':schedule:')
      if word == '-' then call('ZREM', timers_key, member) elseif word ~= '=' then call('ZADD', timers_key, word, member) end
    elseif word == '-' then
      gone[#gone + 1] = field
    elseif word ~= '=' then
      kept[#kept + 1], kept[#kept + 2] = field, word
    end
  end
  call('HSET', schedule_key, unpack(kept))
  if gone[1] then call('HDEL', schedule_key, unpack(gone)) end
end
--- @include start_runs
