#!lua
--- set_clock: Moves the partition's clock; only tests do.
--- KEYS epoch the offset is kept with the epoch
--- KEYS wake[] the timers' wake key
--- ARGV clock_ms:int offset added to Redis TIME
--- RETURNS 1
--- @include lib/wake
call('HSET', epoch_key, 'clock_ms', clock_ms)
wake(KEYS[wake_keys_at + 1])
return 1
