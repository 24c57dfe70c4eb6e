-- include move
-- Wants the run to stop: at once if nobody has it, else its owner is told. The wish is part of the record, so a message
-- that is lost delays it and never loses it.
local function halt(reason)
  judge()
  if state == QUEUED then
    finish(STOPPED, reason, '')
  elseif state < COMPLETED then
    if stop_at == 0 then
      stop_at = now
      enter(STOPPING, now)
      write('p', reason)
    end
    call('SPUBLISH', base .. 'sig:' .. string.sub(token, 1, 16), 'stop ' .. token .. ' ' .. reason)
  end
end
