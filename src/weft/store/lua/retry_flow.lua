#!lua
--- retry_flow: Starts a workflow run with what the code of an ended one was told, as far as that is to be kept.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers the new run goes on by a timer that is due, and passes its gates like every other
--- KEYS wake the timers' wake key
--- KEYS belongings what goes with the new run
--- KEYS journal the new run's
--- KEYS run[] the run it comes from, then the new one
--- KEYS blob[] values of the new run, staged
--- KEYS unique[] the record of its id, or of starts that count as one, if it has any
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who decides
--- ARGV spec:str msgpack: the spec of the new run
--- ARGV delay_ms:int when it begins: so long from now
--- ARGV deadline_ms:int how long it may take; 0: as long as it likes
--- ARGV unique_ms:int how long the record is kept
--- ARGV lived:int entries that journals of earlier lives had
--- ARGV state:str what the run showed of itself; may be empty
--- ARGV reason:str why; may be empty
--- ARGV item{entry:str}[] the journal that it begins with
--- ERRS epoch_missing stale_epoch
--- RETURNS `started`, `exists` (a repeated call), `open` (the run it comes from has not ended), `blob_gone`, or `active <run>` (another has its id)
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
local old_key, new_key = KEYS[run_keys_at + 1], KEYS[run_keys_at + 2]
local old, new = run_of(old_key), run_of(new_key)
if call('EXISTS', new_key) == 1 then return 'exists' end
local ledger = call('HGET', old_key, 'open')
if ledger and string.sub(ledger, 1, 1) ~= '=' then return 'open' end
for b = 1, n_blob_keys do
  if call('EXISTS', KEYS[blob_keys_at + b]) == 0 then return 'blob_gone' end
end
for u = 1, n_unique_keys do
  local held = call('GET', KEYS[unique_keys_at + u])
  if held and held ~= old and held ~= new then return 'active ' .. held end
  call('SET', KEYS[unique_keys_at + u], new, 'PX', unique_ms)
end
local page, seq = 500, 2
note(new, '1', 'queued', '', spec)
note(new, '2', 'forked', 'run=' .. old .. ',lived=' .. lived, reason)
-- What it begins with is told too, as `<bytes>:<entry>` each: its events alone say how it stands, whatever becomes of the other.
for first = 1, n_item, page do
  local told, packed = {}, {}
  for i = first, math.min(first + page - 1, n_item) do
    local entry = item(i)
    told[#told + 1] = entry
    packed[#packed + 1] = #entry .. ':' .. entry
  end
  call('RPUSH', journal_key, unpack(told))
  seq = seq + 1
  note(new, seq, 'inherited', '', table.concat(packed))
end
for b = 1, n_blob_keys do
  call('PERSIST', KEYS[blob_keys_at + b])
  call('SADD', belongings_key, 'blob ' .. id_of(KEYS[blob_keys_at + b], ':blob:' .. new .. ':'))
end
if state ~= '' then
  seq = seq + 1
  note(new, seq, 'state_changed', '', state)
end
local at = write_log()
local begins = string.format('%d', now_ms + delay_ms)
call('HSET', new_key, 'spec', spec, 'open', '2:@' .. begins, 'born', at, 'seq', seq, 'left', 1)
if state ~= '' then call('HSET', new_key, 'state', state) end
if lived > 0 then call('HSET', new_key, 'lived', lived) end
if deadline_ms > 0 then
  local due = string.format('%d', now_ms + deadline_ms)
  call('HSET', new_key, 'deadline', due)
  call('ZADD', timers_key, due, 'deadline:' .. new)
end
call('ZADD', timers_key, begins, 'open:' .. new)
wake(wake_key)
return 'started'
