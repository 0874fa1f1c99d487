#!lua
--- bring_back_graph: Writes an ended graph run as the archive has it, for somebody to retry: page by page, the run itself last.
--- KEYS epoch the partition's epoch
--- KEYS run the graph run
--- KEYS context what its nodes gave
--- KEYS arrivals who has come to its joins
--- KEYS undo what could be undone
--- KEYS belongings what goes with it
--- KEYS signals its signals
--- KEYS tasklog what its steps logged
--- KEYS items[] the items of maps, the items point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV seq:str the newest event that is archived
--- ARGV keep_ms:int how long it stands if nobody retries it
--- ARGV last:int 1: this is the last page
--- ARGV item{to:str key:int name:str value:str}[] to: `context`, `arrivals`, `signals`, `items` or `run`, fields of a hash; `belongings`, members (name); `undo` and `tasklog`, entries of a list, on the last page only
--- ERRS epoch_missing stale_epoch
--- RETURNS `written`, `exists` (it is there, whole) or `moved` (it went on meanwhile)
--- @include lib/fence
--- @include lib/now
local server_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local got = call('HMGET', run_key, 'open', 'seq', 'away')
if got[1] then
  if string.sub(got[1], 1, 1) ~= '=' or (got[2] or '1') ~= seq then return 'moved' end
  if not got[3] or tonumber(got[3]) > server_ms then return 'exists' end
end
local keys = {context = context_key, arrivals = arrivals_key, signals = signals_key, run = run_key, undo = undo_key,
  tasklog = tasklog_key, belongings = belongings_key}
-- Two may bring it back at once: what the other has written is written again, and lists begin anew.
if last == 1 then call('DEL', undo_key, tasklog_key) end
for i = 1, n_item do
  local to, key, name, value = item(i)
  if to == 'items' then
    call('HSET', KEYS[items_keys_at + key], name, value)
  elseif to == 'belongings' then
    call('SADD', belongings_key, name)
  elseif to == 'undo' or to == 'tasklog' then
    call('RPUSH', keys[to], value)
  else
    call('HSET', keys[to], name, value)
  end
end
if last == 1 then call('HSET', run_key, 'away', string.format('%d', server_ms + keep_ms)) end
for _, key in pairs(keys) do call('PEXPIRE', key, keep_ms) end
for i = 1, n_items_keys do call('PEXPIRE', KEYS[items_keys_at + i], keep_ms) end
return 'written'
