-- Collects news per channel, so that a script sends one message per channel however many runs ended.
-- A channel with `~` in front wants every event, the others only the end. Framing: `<run> <word> <bytes>\n<payload>`.
local news = {}
local function tell(watch, run, word, payload, ended)
  for channel in string.gmatch(watch, '%S+') do
    local every = string.sub(channel, 1, 1) == '~'
    if every then channel = string.sub(channel, 2) end
    if every or ended then
      news[channel] = (news[channel] or '') .. run .. ' ' .. word .. ' ' .. #payload .. '\n' .. payload
    end
  end
end
local function send_news()
  for channel, text in pairs(news) do call('PUBLISH', channel, text) end
end
