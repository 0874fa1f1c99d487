#!lua flags=allow-oom
--- take_lease: Takes or renews the lease of a housekeeping service; one session runs it at a time.
--- KEYS lock the lease
--- ARGV owner:str session id
--- ARGV lease_ms:int how long it is held without renewal
--- RETURNS 1 when the caller holds it now, else 0
local held = call('GET', lock_key)
if held and held ~= owner then return 0 end
call('SET', lock_key, owner, 'PX', lease_ms)
return 1
