#!lua flags=allow-oom
--- renew_session: Keeps a worker session alive, unless its steps were given to others.
--- KEYS epoch the partition's epoch
--- KEYS session the lease
--- KEYS sessions the directory of sessions
--- ARGV epoch:str the epoch the caller knows
--- ARGV session:str session id
--- ARGV lease_ms:int how long it stays alive without news
--- ARGV about:str msgpack: what the session serves
--- ERRS epoch_missing stale_epoch session_lost
--- RETURNS `ok`
--- @include lib/fence
if call('GET', session_key) == 'dead' then return redis.error_reply('WEFT session_lost') end
call('SET', session_key, 'alive', 'PX', lease_ms)
call('HSET', sessions_key, session, about)
return 'ok'
