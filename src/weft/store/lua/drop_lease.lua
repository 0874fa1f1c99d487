#!lua flags=allow-oom
--- drop_lease: Gives a lease back, if the caller holds it.
--- KEYS lock the lease
--- ARGV owner:str session id
--- RETURNS 1 when it was given back
if call('GET', lock_key) == owner then return call('DEL', lock_key) end
return 0
