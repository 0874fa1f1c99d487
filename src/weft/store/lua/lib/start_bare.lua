-- The short way of start_runs, for one run that asks for nothing but a token: what a client without load sends. Making all that the long way
-- may need takes half the time of a cold call. Needs lib/now, wake, names, emit. Whatever is not as usual goes the long way.
if n_item == 1 then
  local spec, task, queue, delay_ms, deadline_ms, blob, key, _, _, refs, _, _, unique = item(1)
  if delay_ms == '0' and deadline_ms == '0' and blob == '0' and key == '0' and refs == '' and unique == '0' then
    local run_key, wake_key = KEYS[run_keys_at + 1], KEYS[wake_keys_at + queue]
    if call('EXISTS', run_key) == 1 then return {'exists'} end
    local run = run_of(run_key)
    local born = string.match(call('XADD', log_key, '*', 'at', now, 'by', by, run, '1|queued||' .. spec), '^%d+')
    local open = '1:' .. emit(KEYS[wf_tasks_keys_at + task], run, spec, 1, 1)
    if watch == '' then call('HSET', run_key, 'spec', spec, 'open', open, 'born', born)
    else call('HSET', run_key, 'spec', spec, 'open', open, 'born', born, 'watch', watch) end
    wake(wake_key)
    call('SADD', queues_key, id_of(wake_key, ':wake:'))
    return {'started'}
  end
end
