-- Gates: what a step must pass before its token may be emitted. Needs now_ms, epoch_key, timers_key, lines_key, admit_key,
-- heirs_key and the key lists gate, line, turns, ratelimit. Limits come as references, separated by blanks:
--   c<line>:<n>:<gate>:<turns>                       at most n runs at once
--   r<line>:<n>:<ms>:<cost>:<ratelimit>:<turns>      at most n units in any stretch of that many milliseconds
--   p…                                               the same, for a step that was let through and is about to begin
-- (numbers of declared keys; turns 0: the line is in order of arrival). Behind them may stand a word of lib/heirs.
local function line_of(l) return KEYS[line_keys_at + l] end
-- Tells whether somebody waits in a line. Mostly nobody waits in any, and that is asked once per call: every line with somebody in it is
-- among the lines.
local nobody
local function is_waited(l)
  if nobody == nil then nobody = call('SCARD', lines_key) == 0 end
  return not nobody and call('ZCARD', line_of(l)) > 0
end
local function gate_of(l) return id_of(line_of(l), ':line:') end
local key_held -- How many of its key are let through already, of the run that was looked at last; only keys have lines without turns.
-- Returns the first line the run would have to wait in, its turns and, for a rate, when it opens; nothing when all is open.
-- `own` is the line it heads already: there it overtakes nobody, nor in the lines of gates before that, which it has left
-- behind. If it gave way to those too, the heads of two lines would give way to each other for ever. `fresh`: it holds nothing.
local blocked
do -- for the sake of who includes much: a script may have 200 locals
--- @include lib/rates
function blocked(run, refs, own, fresh)
  key_held = nil
  local gives_way = not own or not string.find(' ' .. refs, '%a' .. string.format('%d', own) .. ':')
  for kind, l, rest in string.gmatch(refs, '(%a)(%d+):(%S+)') do
    l = tonumber(l)
    if kind == 'c' then
      local n, g, t = string.match(rest, '^(%d+):(%d+):(%d+)$')
      local gate = KEYS[gate_keys_at + g]
      if fresh or not call('ZSCORE', gate, run) then
        local held = call('ZCARD', gate)
        if held >= tonumber(n) then return l, tonumber(t) end
        if t == '0' then key_held = held end
        if gives_way and is_waited(l) then
          call('SADD', admit_key, gate_of(l))
          return l, tonumber(t)
        end
      end
    else
      local n, window, cost, k, t = string.match(rest, '^(%d+):(%d+):(%d+):(%d+):(%d+)$')
      local opens, waiting = rate_opens(KEYS[ratelimit_keys_at + k], tonumber(n), tonumber(window), tonumber(cost), run)
      if opens == 0 and kind == 'r' and gives_way and is_waited(l) then opens = now_ms end
      if opens > 0 then return l, tonumber(t), opens end
      if t == '0' then key_held = key_held or waiting end
    end
    gives_way = gives_way or l == own
  end
end
end
--- @include lib/pass
-- Numbers arrivals. The partition is asked for some at once, ever more: that some are never used does not matter.
local come = {0, 0, 1} -- the number that was given last, the last that may be, and how many are asked for next
local function next_arrival()
  if come[1] == come[2] then
    come[2] = call('HINCRBY', epoch_key, 'line', come[3])
    come[1], come[3] = come[2] - come[3], math.min(2 * come[3], 256)
  end
  come[1] = come[1] + 1
  return come[1]
end
-- Puts the run in a line and returns the gate's name. Within a priority keys take turns, so that a key with one run does not
-- wait behind another's thousand. With `lined`, a list, the caller adds its names to the gates with somebody waiting.
local function queue_up(run, l, t, opens, priority, fair, lined)
  local number
  if t == 0 then
    number = next_arrival()
  else
    local turns = KEYS[turns_keys_at + t]
    local field = priority .. '|' .. fair
    local got = call('HMGET', turns, field, '@' .. priority)
    number = math.max((got[1] or 0) + 1, tonumber(got[2] or 0))
    call('HSET', turns, field, number)
  end
  nobody = false
  call('ZADD', line_of(l), (10 - priority) * 281474976710656 + number, run)
  local gate = gate_of(l)
  if not lined then call('SADD', lines_key, gate)
  elseif not lined[gate] then lined[gate], lined[#lined + 1] = true, gate end
  if opens then call('ZADD', timers_key, 'LT', string.format('%d', opens), 'gate:' .. gate) end
  return gate
end
-- What the ledger of a run that waits has behind its gate: how it is like others, if its references say so; see lib/heirs.
local function likeness(refs)
  local like = string.match(refs, ' =(%S+)$')
  return like and ' ' .. like or ''
end
-- Gives the run's slots back and counts in `freed` how many, by line. `>` is the slot of whom the heirs name; see lib/heirs.
local function release_slot(run, l, g, freed)
  local gate = KEYS[gate_keys_at + g]
  local back = call('ZREM', gate, run)
  if back == 0 and call('HGET', heirs_key, gate_of(l)) == run then
    call('HDEL', heirs_key, gate_of(l))
    back = call('ZREM', gate, '>')
  end
  if back == 1 then freed[l] = (freed[l] or 0) + 1 end
end
local function release(run, refs, freed)
  -- Nearly all have one: that is read at once, without looking for more.
  local only, its = string.match(refs, '^c(%d+):0:(%d+):0$')
  if only then return release_slot(run, only, its, freed) end
  for l, g in string.gmatch(refs, 'c(%d+):%d+:(%d+)') do release_slot(run, l, g, freed) end
  for l, k in string.gmatch(refs, 'h(%d+):(%d+)') do
    if call('HDEL', KEYS[ratelimit_keys_at + k], '@' .. run) == 1 then freed[l] = (freed[l] or 0) + 1 end
  end
end
-- Marks the gates where somebody waits for a slot that became free; returns whether there are any.
local function mark_freed(freed)
  local awaited = false
  for l, n in pairs(freed) do
    if n > 0 and is_waited(l) then
      call('SADD', admit_key, gate_of(l))
      awaited = true
    end
  end
  return awaited
end
-- Tells whether one of these gates counts starts: a step that begins once more must pass it once more.
local function counts_starts(gates)
  local names = ' ' .. (gates or '')
  return string.find(names, ' rate|', 1, true) ~= nil or string.find(names, ' queuerate|', 1, true) ~= nil
end
