#!lua
--- publish_status: Keeps an observation of a task that runs elsewhere, unless it is known: by its event id, else by its content.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS status the task
--- KEYS status_history its observations
--- KEYS status_feed the observations of all tasks
--- KEYS status_event[] where its event id is remembered; none: it has no event id
--- KEYS status_children[] the children of its parent; none: it has no parent, or one of another partition
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who publishes
--- ARGV name:str what the log calls the task
--- ARGV task:str its id
--- ARGV parent:str id of its parent; empty: not said
--- ARGV content:str digest of what is observed
--- ARGV facts:str what the log tells besides the observation
--- ARGV payload:str the observation, packed
--- ARGV keep_ms:int how long the task is kept from now on
--- ARGV seen_ms:int how long its event id is remembered
--- ARGV n_history:int how many observations of a task are kept
--- ARGV n_feed:int how many of all tasks
--- ERRS epoch_missing stale_epoch archive_behind
--- RETURNS `published` or `known` with log entry, ms and the task's parent; `other_event` or `other_parent` with what is known
--- @include lib/fence
--- @include lib/behind
--- @include lib/now
--- @include lib/log
local event_key, children_key = n_status_event_keys > 0 and KEYS[status_event_keys_at + 1], n_status_children_keys > 0 and KEYS[status_children_keys_at + 1]
local held = call('HGET', status_key, 'parent')
if held and parent ~= '' and held ~= parent then return {'other_parent', '', '', held} end
local known
if event_key then
  known = call('GET', event_key)
else
  -- Only the newest one: a task may well come back to a status that it had before.
  known = call('LINDEX', status_history_key, 0)
end
local entry_id, at, same
if known then entry_id, at, same = string.match(known, '^(%S+) (%S+) (%S+)') end
if event_key and known and same ~= content then return {'other_event', entry_id, at, ''} end
local repeated = known and same == content
-- A task that says the same again is still there.
local function keep()
  call('PEXPIRE', status_key, keep_ms)
  call('PEXPIRE', status_history_key, keep_ms)
  if children_key then call('PEXPIRE', children_key, keep_ms) end
end
if repeated then
  keep()
  return {'known', entry_id, at, held or ''}
end
note(name, call('HINCRBY', status_key, 'n', 1), 'observed', facts, payload)
local id = call('XADD', log_key, '*', unpack(entry))
local head = id .. ' ' .. now .. ' ' .. content
call('LPUSH', status_history_key, head .. ' ' .. payload)
call('LTRIM', status_history_key, 0, n_history - 1)
call('HSETNX', status_key, 'task', task)
call('HSETNX', status_key, 'born', now)
if parent ~= '' then call('HSETNX', status_key, 'parent', parent) end
if children_key then call('ZADD', children_key, 'NX', now_ms, task) end
if event_key then call('SET', event_key, head, 'PX', seen_ms) end
-- Under the log's own number, so that feed and archive agree; a log that began anew may be behind the feed.
local observation = head .. ' ' .. payload
if pcall('XADD', status_feed_key, 'MAXLEN', '~', n_feed, id, 'o', observation).err then
  call('XADD', status_feed_key, 'MAXLEN', '~', n_feed, '*', 'o', observation)
end
keep()
return {'published', id, now, parent ~= '' and parent or held or ''}
