#!lua flags=allow-oom
--- begin_suspect: Notes that a suspect begins: when its worker dies now, the death is charged to it and to no suspect that only waited.
--- KEYS epoch the partition's epoch
--- KEYS session the worker's session; a tombstone refuses
--- KEYS run the suspect
--- ARGV epoch:str the epoch the caller knows
--- ARGV ledger:str the ledger of its token
--- ERRS epoch_missing stale_epoch session_lost
--- RETURNS `ok`, or `stale` when the step is another's or nobody's by now
--- @include lib/fence
-- What the sweeper has looked at must not be marked behind its back: it would be charged with a death it had no part in.
if call('GET', session_key) == 'dead' then return redis.error_reply('WEFT session_lost') end
local open = pcall('HGET', run_key, 'open')
if type(open) == 'table' and open.err then return 'ok' end -- its commit finds it broken and puts it up for repair
if open ~= ledger then return 'stale' end
call('HSET', run_key, 'begun', string.match(ledger, '^%d+'))
return 'ok'
