-- include move
-- Finds runs that made no progress for so many ms, and those that were asked to stop so long ago. Each is told of once;
-- progress makes that undone. What was found is put behind the others, so that each is looked at in turn.
local function report(most)
  local found = {}
  for _, name in ipairs({'is:running', 'is:stopping'}) do
    for _, run in ipairs(call('ZRANGEBYSCORE', base .. name, '-inf', now - most, 'LIMIT', 0, 16)) do
      if not read(run) then
        drop(name, run)
      else
        if now - progress >= most and not has(STUCK) then
          set(STUCK)
          write()
          index('stuck', now, run)
          found[#found + 1] = run
        end
        index(name, has(STUCK) and now or progress, run)
      end
    end
  end
  return found
end
