#!lua flags=allow-oom
--- reopen_partition: Opens a partition that was rebuilt, under its new epoch.
--- KEYS epoch the partition's epoch
--- ARGV epoch:str the epoch under which it was rebuilt
--- ERRS epoch_missing stale_epoch
--- RETURNS `open`
--- @include lib/rebuild
call('HDEL', epoch_key, 'recovering')
-- No token was emitted meanwhile.
call('HSET', epoch_key, 'number', epoch, 'levels', '5')
return 'open'
