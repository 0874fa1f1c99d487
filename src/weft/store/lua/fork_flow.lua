#!lua
--- fork_flow: Starts a workflow run with what the code of another one was told; that one stays as it is.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS timers the new run goes on by a timer that is due, and passes its gates like every other
--- KEYS wake the timers' wake key
--- KEYS belongings what goes with the new run
--- KEYS run[] the run it comes from, then the new one
--- KEYS journal[] theirs
--- KEYS mail[] theirs
--- KEYS blob[] values of the one, each followed by its place with the other
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who decides
--- ARGV ledger:str ledger of the run it comes from, as the caller read it
--- ARGV length:int entries that its journal must have
--- ARGV spec:str msgpack: the spec of the new run
--- ARGV deadline_ms:int how long it may take; 0: as long as it likes
--- ARGV digests:str the values that go with it, separated by blanks
--- ARGV item{at:int header:str}[] entries that are told otherwise: place from 0, new header; an empty one is left out
--- ERRS epoch_missing stale_epoch not_found
--- RETURNS `started`, `exists` (a repeated call), `again` (it is not as the caller read it), `blob_gone`, or `ended <status>`
--- @include lib/fence
--- @include lib/now
--- @include lib/wake
--- @include lib/names
--- @include lib/log
--- @include lib/tell
--- @include lib/emit
--- @include lib/flows
local old_key, new_key = KEYS[run_keys_at + 1], KEYS[run_keys_at + 2]
local flow, new = read_flow(old_key), run_of(new_key)
if not flow.open then return redis.error_reply('WEFT not_found there is no run ' .. flow.id) end
if call('EXISTS', new_key) == 1 then return 'exists' end
if flow.ended then return 'ended ' .. (flow.status or 'completed') end
local journal, mail = KEYS[journal_keys_at + 1], KEYS[mail_keys_at + 1]
if flow.open ~= ledger or call('LLEN', journal) ~= length then return 'again' end
for b = 1, n_blob_keys, 2 do
  if call('EXISTS', KEYS[blob_keys_at + b]) == 0 then return 'blob_gone' end
end
local headers = {}
for i = 1, n_item do
  local at, header = item(i)
  headers[at] = header
end
local page, seq = 500, 2
-- What it begins with is told too, as `<bytes>:<entry>` each: its events alone say how it stands, whatever becomes of the other.
local function inherit(key, told, facts)
  if not told[1] then return end
  call('RPUSH', key, unpack(told))
  local packed = {}
  for i, entry in ipairs(told) do packed[i] = #entry .. ':' .. entry end
  seq = seq + 1
  note(new, seq, 'inherited', facts, table.concat(packed))
end
note(new, '1', 'queued', '', spec)
local had = call('HMGET', old_key, 'state', 'lived')
note(new, '2', 'forked', 'run=' .. flow.id .. ',lived=' .. (had[2] or '0'), '')
for first = 0, length - 1, page do
  local told = {}
  for i, entry in ipairs(call('LRANGE', journal, first, first + page - 1)) do
    local header = headers[first + i - 1]
    if header ~= '' then
      told[#told + 1] = header and header .. string.sub(entry, string.find(entry, '\n', 1, true), -1) or entry
    end
  end
  inherit(KEYS[journal_keys_at + 2], told, '')
end
-- Signals that nobody took are for both; the rest is about steps of the other run.
for first = 0, call('LLEN', mail) - 1, page do
  local told = {}
  for _, piece in ipairs(call('LRANGE', mail, first, first + page - 1)) do
    if string.find(piece, '^%d+ signal ') then told[#told + 1] = piece end
  end
  inherit(KEYS[mail_keys_at + 2], told, 'mail=1')
end
for b = 1, n_blob_keys, 2 do
  call('COPY', KEYS[blob_keys_at + b], KEYS[blob_keys_at + b + 1], 'REPLACE')
  call('PERSIST', KEYS[blob_keys_at + b + 1])
end
for digest in string.gmatch(digests, '%S+') do call('SADD', belongings_key, 'blob ' .. digest) end
if had[1] then
  seq = seq + 1
  note(new, seq, 'state_changed', '', had[1])
end
tell_of(flow, 'forked_as', 'run=' .. new, '')
local at = write_log()
call('HSET', old_key, 'seq', flow.seq, 'more', point(flow.more, at))
call('HSET', new_key, 'spec', spec, 'open', '2:@' .. now, 'born', at, 'seq', seq, 'left', 1)
if had[1] then call('HSET', new_key, 'state', had[1]) end
if had[2] then call('HSET', new_key, 'lived', had[2]) end
if deadline_ms > 0 then
  local due = string.format('%d', now_ms + deadline_ms)
  call('HSET', new_key, 'deadline', due)
  call('ZADD', timers_key, due, 'deadline:' .. new)
end
call('ZADD', timers_key, now, 'open:' .. new)
wake(wake_key)
send_news()
return 'started'
