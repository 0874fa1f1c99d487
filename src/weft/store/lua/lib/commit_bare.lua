-- The short way of commit_steps, for one step that has completed and leaves nothing behind: what a worker without load sends. Needs lib/now,
-- names, tell. Whatever is not as usual goes the long way, as if it had not been looked at.
if n_item == 1 then
  local kind, task, _, ledger, after_ms, started_ms, input, output, value, refs, logged, unique = item(1)
  if kind == 'completed' and input == '0' and output == '0' and refs == '' and logged == '' and unique == '0' then
    local run_key, stream = KEYS[run_keys_at + 1], KEYS[wf_tasks_keys_at + task]
    local got = pcall('HMGET', run_key, 'open', 'seq', 'watch', 'attempt', 'deadline')
    local token = string.match(ledger, ':(.+)$')
    if got[1] == ledger and not got[5] and call('XACK', stream, group, token) == 1 then
      local run, seq = run_of(run_key), string.format('%d', (got[2] or 1) + 1)
      local event = seq .. '|completed|attempt=' .. (got[4] or '1') .. ',started=' .. started_ms .. '|' .. value
      call('XDEL', stream, token)
      local at = string.match(call('XADD', log_key, '*', 'at', now, 'by', by, run, event), '^%d+')
      call('HSET', run_key, 'status', kind, 'result', value, 'open', '=' .. ledger, 'seq', seq, 'ended', at,
        'started', started_ms)
      call('PEXPIRE', run_key, after_ms)
      if got[3] then tell(got[3], run, kind, value, true) end
      send_news()
      return {'ok'}
    end
  end
end
