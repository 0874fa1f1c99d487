#!lua flags=allow-oom
--- investigate_letter: Notes with a dead letter that somebody looked into it, or takes that note back.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS run the dead letter
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who looked, without blanks
--- ARGV found:str what they found; empty takes the mark back
--- ERRS epoch_missing stale_epoch not_found conflict
--- RETURNS `ok`
--- @include lib/fence
--- @include lib/now
--- @include lib/names
--- @include lib/log
local got = call('HMGET', run_key, 'open', 'status', 'more')
if not got[1] then return redis.error_reply('WEFT not_found') end
if got[2] ~= 'failed' or string.sub(got[1], 1, 1) ~= '=' then return redis.error_reply('WEFT conflict') end
if found == '' then
  call('HDEL', run_key, 'investigated')
else
  call('HSET', run_key, 'investigated', now .. ' ' .. by .. ' ' .. found)
end
local seq = call('HINCRBY', run_key, 'seq', 1)
note(run_of(run_key), text[seq], 'investigated', '', found)
call('HSET', run_key, 'more', point(got[3], write_log()))
return 'ok'
