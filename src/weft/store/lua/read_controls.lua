#!lua flags=no-writes
--- read_controls: Reads what operators have set, with its version.
--- KEYS epoch holds the version
--- KEYS controls what is set
--- ARGV epoch:str the epoch the caller knows
--- ERRS epoch_missing stale_epoch
--- RETURNS the version, then names and values (JSON)
--- @include lib/fence
return {home[3] or '0', unpack(call('HGETALL', controls_key))}
