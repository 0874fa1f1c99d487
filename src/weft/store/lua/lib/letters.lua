-- Dead letters of steps. Needs lib/names, log and the families run and dlq. A record `letter` (run: the step, name, spec: what a replay
-- asks for, wait: how long it is kept, refs: the attempt, fair: its error) turns the step's own hash into one; a step that never began, or stood alone (`born`: since when), gets a hash.
local letters = {}
local function plan_letter(i, ended, ledger, started, born)
  local _, r, _, _, _, spec, keep_ms, attempt, _, value = item(i)
  if r ~= ended then ledger, started, born = '1:-', now, nil end
  local run_key = KEYS[run_keys_at + r]
  local got, run = call('HMGET', run_key, 'born', 'seq'), run_of(run_key)
  born = got[1] or born
  letters[#letters + 1] = {run_key, spec, keep_ms}
  -- What somebody else ended, such as poison by the sweeper, tells of its end already.
  if string.sub(ledger, 1, 1) == '=' then return end
  local seq = tonumber(got[2] or 1) + 1
  if not born then note(run, '1', 'queued', '', spec) end
  note(run, seq, 'failed', 'attempt=' .. attempt .. ',started=' .. started, value)
  letters[#letters] = {run_key, spec, keep_ms, attempt, seq, ledger, value, started, born}
end
local function write_letters(at)
  for _, letter in ipairs(letters) do
    local run_key, spec, keep_ms, attempt, seq, ledger, value, started, born = unpack(letter, 1, 9)
    call('HSET', run_key, 'spec', spec, 'letter', 1)
    if ledger then
      call('HSET', run_key, 'open', '=' .. ledger, 'status', 'failed', 'error', value, 'seq', seq, 'attempt', attempt, 'started', started,
        'ended', at, 'by', by, 'born', born or at)
    end
    call('HDEL', run_key, 'gates', 'deadline')
    call('PEXPIRE', run_key, keep_ms)
    call('ZADD', dlq_key, at, run_of(run_key))
  end
end
