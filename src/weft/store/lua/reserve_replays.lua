#!lua
--- reserve_replays: Takes a run id for the replay of each dead letter; whoever comes second gets the same id, or is refused.
--- KEYS epoch the partition's epoch
--- KEYS run[] the dead letters, one per item
--- ARGV epoch:str the epoch the caller knows
--- ARGV force:int 1: also those that were replayed before
--- ARGV item{fresh:str}[] the id to take unless one is taken already
--- ERRS epoch_missing stale_epoch
--- RETURNS per item: `reserved <run>`, `replayed <run>` (before), `other` (it did not fail) or `gone`
--- @include lib/fence
local reply = {}
for i = 1, n_item do
  local run_key = KEYS[run_keys_at + i]
  local got = call('HMGET', run_key, 'open', 'status', 'replayed', 'replaying')
  if not got[1] then
    reply[i] = 'gone'
  elseif got[2] ~= 'failed' or string.sub(got[1], 1, 1) ~= '=' then
    reply[i] = 'other'
  elseif got[3] and force == 0 then
    reply[i] = 'replayed ' .. got[3]
  elseif got[4] then
    -- A replay is under way, or died between its steps: with the same id both end up with the same run.
    reply[i] = 'reserved ' .. got[4]
  else
    local fresh = item(i)
    call('HSET', run_key, 'replaying', fresh)
    reply[i] = 'reserved ' .. fresh
  end
end
return reply
