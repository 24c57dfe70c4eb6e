"""What a page says: its bytes as text, its visible text, its JSON. Reads what strangers wrote, and does no I/O."""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError, HoldfastError

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([A-Za-z0-9_.:+-]{1,40})""", re.IGNORECASE)
_META = re.compile(rb"<meta\s[^>]{0,1000}", re.IGNORECASE)
_LOOK_FOR_META = 4096
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_MEANT = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
"""What browsers take these names for: pages say one and use the characters of the other."""
_NO_CHARSET = {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7", "mbcs", "oem"}
"""Python knows them, but no page is written in them; some are slow on purpose-made input."""

_SILENT = {"script", "style", "template", "noscript", "head", "iframe", "object"}
"""Elements whose text is not shown."""
_INLINE = {
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins",
    "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
}  # fmt: skip
"""Elements inside a line: `<b>1</b>2` reads 12. All others begin a new word."""


class PageFailed(HoldfastError):
    """A page was not to be had, or not to be read. What was known of it stays."""


class PageUnreadable(PageFailed):
    """The page is not what it says it is, or is too large, or took too long to read."""


def kind_of(body: bytes, content_type: str) -> str:
    """`json`, `html`, `text` or `binary`."""
    name = content_type.partition(";")[0].strip().lower()
    if name in ("text/html", "application/xhtml+xml"):
        return "html"
    if name.endswith(("/json", "+json")):
        return "json"
    if name.startswith("text/") or name.endswith(("/xml", "+xml", "/javascript", "/yaml", "/x-ndjson")):
        return "text"
    if name:
        return "binary"
    start = body[:1024].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "html"
    return "binary" if b"\x00" in start else "text"


def text_of(body: bytes, content_type: str) -> str:
    """The bytes as text. What is wrong in them becomes U+FFFD.

    The charset is that of a byte order mark, of the content type, of a `<meta>` near the start; else UTF-8 if it is,
    and Windows-1252 if not."""
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    stated = _CHARSET.search(content_type)
    charset = _known(stated[1]) if stated else ""
    if not charset:
        charset = _from_meta(body[:_LOOK_FOR_META])
    if charset:
        return body.decode(charset, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _known(name: str) -> str:
    """Python's name of a charset; empty for what is none."""
    try:
        found = codecs.lookup(name).name
        b"a".decode(found, "ignore")  # a codec that makes no text of bytes, such as zlib, is refused here
    except (LookupError, ValueError):
        return ""
    return "" if found.replace("_", "-") in _NO_CHARSET else _MEANT.get(found, found)


def _from_meta(start: bytes) -> str:
    for tag in _META.finditer(start):
        stated = _CHARSET.search(tag.group().decode("latin-1"))
        if stated:
            found = _known(stated[1])
            # The tag was read as ASCII, so it is in nothing wider, whatever it says.
            return "utf-8" if found.startswith(("utf-16", "utf-32")) else found
    return ""


def json_of(body: bytes) -> Any:
    """The JSON value. Raises PageUnreadable."""
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # also what is no UTF-8, and numbers without end
        why = str(error) if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise PageUnreadable(f"check the page: it is no JSON ({why})") from None


def _refuse(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is no JSON", "", 0)


def parsed(text: str) -> LexborHTMLParser:
    """The document. On hostile input this takes minutes, holding the interpreter: run it where it can be ended."""
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError:
        raise ConfigurationError("pip install '.[monitor]' in Holdfast's clone to read HTML") from None
    return LexborHTMLParser(text)


def visible(node: LexborNode | None) -> str:
    """The text that is shown, with single spaces. Styles are not applied: what only they hide is in it."""
    if node is None:
        return ""
    if node.tag in _SILENT:  # asked for by name, so it is what is meant
        return " ".join(node.text().split())
    parts: list[str] = []
    # A stack of our own: a page may be nested more deeply than Python calls can be.
    level = [iter(node.iter(include_text=True))]
    ends = [""]
    while level:
        child = next(level[-1], None)
        if child is None:
            level.pop()
            parts.append(ends.pop())
        elif child.is_text_node:
            parts.append(child.text_content or "")
        elif child.tag not in _SILENT:
            space = "" if child.tag in _INLINE else " "
            parts.append(space)
            level.append(iter(child.iter(include_text=True)))
            ends.append(space)
    return " ".join("".join(parts).split())
