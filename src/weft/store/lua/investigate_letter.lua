#!lua flags=allow-oom
--- investigate_letter: Notes with a dead letter that somebody looked into it, or takes that note back.
--- KEYS epoch the partition's epoch
--- KEYS log the partition's log
--- KEYS run the dead letter
--- ARGV epoch:str the epoch the caller knows
--- ARGV by:str who looked, without blanks
--- ARGV said:str what they found; empty takes the mark back
--- ARGV act:str what somebody does, for the audit
--- ERRS epoch_missing stale_epoch not_found conflict
--- RETURNS `ok`
--- @include lib/fence
--- @include lib/now
--- @include lib/names
--- @include lib/log
--- @include lib/act
local got = call('HMGET', run_key, 'open', 'status', 'investigated', 'more')
if not got[1] then return redis.error_reply('WEFT not_found') end
if got[2] ~= 'failed' or string.sub(got[1], 1, 1) ~= '=' then return redis.error_reply('WEFT conflict') end
local found = said ~= '' and now .. ' ' .. by .. ' ' .. said or ''
if said == '' then
  call('HDEL', run_key, 'investigated')
else
  call('HSET', run_key, 'investigated', found)
end
tell_act(1, act, got[3] or '', found)
note(run_of(run_key), text[call('HINCRBY', run_key, 'seq', 1)], 'investigated', '', said)
call('HSET', run_key, 'more', point(got[4], write_log()))
return 'ok'
