-- Takes tokens of a stream where some key has more than one (see lib/emit). What came before that is taken in order; then two that were
-- noted, because their key had no other, for one in order. A key has at most one that is noted or came before, so with K busy keys a
-- new one waits for at most 2K others. A noted token is taken where it stands: it is pending like any other, and whoever reads on
-- to it in order leaves it to its holder. Returns how many there were, or nothing: then the ordinary way does, and calls `unmark` when
-- it has emptied the stream. Needs home, last_read, tell_token and reply. The mark is `<first token that made two of its key> <ms before which the
-- last such came> <noted ones taken in a row> <the last of them; 0-0 when all have been passed> <first note> <next note>`; notes are
-- fields of their own.
local overtake, unmark
if after == '>' and (home[5] or '0') ~= '0' then
  local MANY = 100
  local function is_before(one, other)
    local ms, n = string.match(one, '^(%d+)-(%d+)$')
    local other_ms, other_n = string.match(other, '^(%d+)-(%d+)$')
    ms, other_ms = tonumber(ms), tonumber(other_ms)
    return ms < other_ms or (ms == other_ms and tonumber(n) < tonumber(other_n))
  end
  local function names_of(field, first, some)
    local names = {}
    for f = 1, some do names[f] = string.format('%s:%020d', field, first + f - 1) end
    return names
  end
  local function field_of(stream) return 'fresh:' .. string.match(stream, ':wf%.tasks:(.*)$') end
  function unmark(stream)
    if call('HDEL', epoch_key, field_of(stream)) == 1 then call('HINCRBY', epoch_key, 'fresh', -1) end
  end
  function overtake(s, stream, n)
    local field = field_of(stream)
    local mark = call('HGET', epoch_key, field)
    -- Nothing is noted, and all that was taken out of order has been passed.
    if not mark or string.find(mark, ' 0%-0 (%d+) %1$') then return end
    local since, till, turn, early, first, next_note = string.match(mark, '^(%S+) (%d+) (%d) (%S+) (%d+) (%d+)$')
    turn, first, next_note = tonumber(turn), tonumber(first), tonumber(next_note)
    local last, taken, emptied = last_read(stream), 0, false
    if not last then
      call('XGROUP', 'CREATE', stream, group, '0')
      last = '0-0'
    end
    local function give(token)
      reply[#reply + 1] = tell_token(string.format('%d', s), token[1], token[2])
      taken = taken + 1
    end
    local function read_on(goal)
      while taken < goal and not emptied do
        local asked, held = goal - taken, {}
        if is_before(last, early) then
          for _, one in ipairs(call('XPENDING', stream, group, '(' .. last, '+', asked)) do held[one[1]] = one end
        end
        local got = call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', asked, 'STREAMS', stream, '>')
        local tokens = got and got[1] and got[1][2] or {}
        emptied = #tokens < asked
        for _, token in ipairs(tokens) do
          local one = held[token[1]]
          last = token[1]
          if not one then give(token)
          elseif one[2] ~= consumer then call('XCLAIM', stream, group, one[2], 0, last, 'IDLE', one[3], 'JUSTID') end
        end
      end
    end
    if first < next_note and is_before(last, since) then
      read_on(#call('XRANGE', stream, '(' .. last, '(' .. since, 'COUNT', n))
    end
    if first < next_note and taken < n then
      local wanted, looked, passed = 0, 0, false
      for _ = taken + 1, n do
        if turn < 2 then turn, wanted = turn + 1, wanted + 1 else turn = 0 end
      end
      while wanted > 0 and first < next_note and looked < 2 * MANY do
        local some = math.min(wanted, next_note - first, MANY)
        local names, there = names_of(field, first, some), {}
        local noted = call('HMGET', epoch_key, unpack(names))
        call('HDEL', epoch_key, unpack(names))
        first, looked = first + some, looked + some
        for f = 1, some do
          -- They are in order: behind the first that nobody has read to, all are.
          passed = passed or (noted[f] and is_before(last, noted[f]))
          if passed and noted[f] then there[#there + 1] = noted[f] end
        end
        if there[1] then
          there[#there + 1] = 'FORCE'
          -- What was cancelled meanwhile is not among the answers.
          for _, token in ipairs(call('XCLAIM', stream, group, consumer, 0, unpack(there))) do
            give(token)
            wanted, early = wanted - 1, token[1]
          end
        end
      end
      if wanted > 0 then turn = 0 end
    end
    read_on(n)
    if not is_before(last, early) then early = '0-0' end
    -- All that is noted has been taken, or what is left is in order: no key has two of it.
    local over = emptied or (early == '0-0' and next_note - first <= MANY and is_before(till .. '-0', last))
    if over and first < next_note then
      local some = math.min(next_note - first, MANY)
      call('HDEL', epoch_key, unpack(names_of(field, first, some)))
      first = first + some
    end
    if over and first == next_note then
      unmark(stream)
    else
      local left = string.format('%s %s %d %s %020d %020d', since, till, turn, early, first, next_note)
      if left ~= mark then call('HSET', epoch_key, field, left) end
    end
    return taken
  end
end
