#!lua flags=allow-oom
--- admit_steps: Lets the heads of lines through where there is room now; each is verified again.
--- KEYS epoch the partition's epoch
--- KEYS timers rates are looked at again when they open
--- KEYS lines gates with somebody waiting
--- KEYS admit gates to be looked at
--- KEYS heirs who has a slot that is handed on
--- KEYS wake[] the timers' wake key first, then one per queue
--- KEYS wf.tasks[] the streams the items point at
--- KEYS run[] one per item
--- KEYS gate[] what the references point at
--- KEYS line[] the lines that were looked at first, then others the references point at
--- KEYS turns[] what the references point at
--- KEYS ratelimit[] what the references point at
--- ARGV epoch:str the epoch the caller knows
--- ARGV controls:str the version of the controls the caller knows
--- ARGV looked:int how many lines were looked at
--- ARGV turns_of:str per looked line the number of its turns, separated by blanks
--- ARGV item{task:int queue:int at:int refs:str priority:int fair:str}[] heads of lines in order; at: its line
--- ERRS epoch_missing stale_epoch stale_controls
--- RETURNS per item `admitted`, `moved` (waits at another gate), `blocked` or `gone`; then per looked line `more` or `done`
--- @include lib/fence
--- @include lib/now
--- @include lib/controls
--- @include lib/wake
--- @include lib/names
--- @include lib/emit
--- @include lib/gates
--- @include lib/admit
local reply, stopped, went, turns_at, woken = {}, {}, {}, {}, {}
for number in string.gmatch(turns_of, '%d+') do turns_at[#turns_at + 1] = tonumber(number) end
for i = 1, n_item do
  local task, queue, at, refs, priority, fair = item(i)
  local word, l = 'blocked'
  if not stopped[at] then
    word, l = admit_head(KEYS[run_keys_at + i], at, turns_at[at], task, queue, refs, priority, fair)
  end
  reply[i] = word
  if word == 'blocked' then stopped[at] = true end
  if word == 'admitted' then woken[queue] = true end
  if l then
    -- As many go on from here to a later line as have room here: the rest would only come back, and out of order.
    local n, g, later = string.match(refs, 'c' .. at .. ':(%d+):(%d+)(.*)')
    if n and string.find(later, '%a' .. l .. ':') then
      went[at] = (went[at] or 0) + 1
      stopped[at] = went[at] >= n - call('ZCARD', KEYS[gate_keys_at + g])
    end
  end
end
for queue in pairs(woken) do wake(KEYS[wake_keys_at + queue]) end
for l = 1, looked do
  local left = close_line(l, turns_at[l])
  if left == 0 or stopped[l] then call('SREM', admit_key, gate_of(l)) end
  reply[n_item + l] = (left == 0 or stopped[l]) and 'done' or 'more'
end
return reply
