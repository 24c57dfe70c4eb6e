-- An entry, as far as scripts look into it:
--   1 version   2-11 id   12-17 server ms   18-21 tokens   22 calls made   23 results given
--   then 4 bytes for each call it makes, 4 for each call it answers, then the payload, which is the client's own.
-- Numbers are big-endian. What has another version has no links and counts no tokens.
local VERSION, LINKS = 1, 24
local function number(text, from, to)
  local value = 0
  for _, byte in ipairs({string.byte(text, from, to)}) do value = value * 256 + byte end
  return value
end
local function links(entry)
  local version, calls, results = string.byte(entry, 1), string.byte(entry, 22, 23)
  if version ~= VERSION or not results then return 0, 0 end
  return calls, results
end
local function tokens_of(entry)
  return string.byte(entry, 1) == VERSION and number(entry, 18, 21) or 0
end
local function ms_of(entry)
  return string.byte(entry, 1) == VERSION and number(entry, 12, 17) or 0
end
local function link(entry, at)
  return string.sub(entry, LINKS + 4 * at - 4, LINKS + 4 * at - 1)
end
