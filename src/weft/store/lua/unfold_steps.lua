#!lua flags=allow-oom
--- unfold_steps: Gives steps that stand alone in the hash of their graph run a place in its ledger and a hash of their own; nothing else changes.
--- KEYS epoch the partition's epoch
--- KEYS run[] the graph runs, then their steps, in the same order
--- KEYS ledger[] open steps, one per graph run
--- ARGV epoch:str the epoch the caller knows
--- ERRS epoch_missing stale_epoch
--- RETURNS how many did
--- @include lib/fence
--- @include lib/names
--- @include lib/lone
local n = 0
for i = 1, n_ledger_keys do
  local graph_key, step_key = KEYS[run_keys_at + i], KEYS[run_keys_at + n_ledger_keys + i]
  local lone = pcall('HGET', graph_key, 'lone')
  if type(lone) == 'string' then
    local step, open, born, spec = read_lone(lone)
    -- The run may be at another step by now, which nobody has asked for.
    if run_of(step_key) == run_of(graph_key) .. '/' .. step then
      call('DEL', step_key)
      call('HSET', step_key, 'spec', spec, 'open', open, 'born', born)
      call('HSET', KEYS[ledger_keys_at + i], step, string.format('%d', born + (tonumber(home[2]) or 0)))
      call('HDEL', graph_key, 'lone')
      n = n + 1
    end
  end
end
return n
