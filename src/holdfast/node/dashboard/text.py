"""Ids, numbers and times as people read them; ids as they stand in addresses. Nothing here does I/O.

Ids come from anybody. What is shown of one is text, with everything that could hide or reorder characters made visible,
and an address never holds one as it is.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from holdfast import ConfigurationError
from holdfast.node.api.shapes import plain

Id = str | bytes
DASH = "\u2013"
NOTHING = Markup('<span class="none">{}</span>').format(DASH)
LONGEST_SHOWN = 64
LONGEST_TOKEN = 1000
LONGEST_DATA = 4000
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_PLAIN = re.compile(r"[A-Za-z0-9_:@+=,-][A-Za-z0-9_.:@+=,-]{0,254}")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


# -- ids to read ------------------------------------------------------------------------------------------------------


def pieces(value: object) -> Iterator[tuple[str, bool]]:
    """Parts of an id in order; True: an escape, that stands for a character nobody could see."""
    if isinstance(value, bytes):
        for byte in value:
            yield (chr(byte), False) if 0x21 <= byte < 0x7F else (f"\\x{byte:02x}", True)
        return
    text = " · ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    for at, letter in enumerate(text):
        edge = letter == " " and (at in (0, len(text) - 1) or text[at - 1] == " ")
        kind = unicodedata.category(letter)
        if letter in _SHORT:
            yield _SHORT[letter], True
        elif kind in _HIDDEN or edge or (kind == "Zs" and letter != " "):
            code = ord(letter)
            yield (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"), True
        else:
            yield letter, False


def shown(value: object) -> str:
    """An id as plain text that can be read, typed and pasted."""
    text = "".join(part for part, _ in pieces(value))
    return f"bytes {text}" if isinstance(value, bytes) else text


def id_html(value: object, longest: int = LONGEST_SHOWN) -> Markup:
    """An id as an element: isolated from the direction of the text around it, cut where long, whole in its title."""
    if value is None or value == "":
        return NOTHING
    parts = list(pieces(value))
    tag = Markup('<span class="tag">bytes</span> ') if isinstance(value, bytes) else Markup("")
    if len(parts) <= longest:
        return Markup('{}<bdi class="id">{}</bdi>').format(tag, _joined(parts))
    head, tail = parts[: longest - 16], parts[-12:]
    return Markup('{}<bdi class="id" title="{}">{}<span class="cut">…</span>{}</bdi>').format(
        tag, shown(value), _joined(head), _joined(tail)
    )


def _joined(parts: list[tuple[str, bool]]) -> Markup:
    made: list[Markup] = []
    plain: list[str] = []
    for part, hidden in parts:
        if not hidden:
            plain.append(part)
            continue
        if plain:
            made.append(escape("".join(plain)))
            plain = []
        made.append(Markup('<span class="esc">{}</span>').format(part))
    if plain:
        made.append(escape("".join(plain)))
    return Markup("").join(made)


def same_id(typed: str, value: Id) -> bool:
    """Did somebody type this id, as it is or as it is shown?"""
    return typed in (value, shown(value)) or typed.strip() in (value, shown(value))


# -- ids in addresses -------------------------------------------------------------------------------------------------


def token(value: Id) -> str:
    """An id as one segment of a path: itself where that is harmless, else `~` and base64. One-to-one."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return "~" + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def untoken(text: str) -> Id:
    """The id of a segment. Raises ConfigurationError for what `token` did not make."""
    if not text.startswith("~"):
        return text
    try:
        raw = base64.b64decode(text[1:] + "=" * (-len(text[1:]) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise ConfigurationError("follow a link of the dashboard: this address holds no id") from None
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw


def name_of(text: str) -> str:
    """The name of a collection from a segment: always text."""
    found = untoken(text)
    if isinstance(found, bytes):
        raise ConfigurationError("follow a link of the dashboard: names of collections are text")
    return found


# -- data -------------------------------------------------------------------------------------------------------------


def data_html(value: Any, longest: int = LONGEST_DATA) -> Markup:
    """Somebody's data as indented JSON, in text, cut where long."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=2, default=str)
    lines = [_joined(list(pieces(line.lstrip(" ")))) for line in text[:longest].split("\n")]
    indents = [len(line) - len(line.lstrip(" ")) for line in text[:longest].split("\n")]
    body = Markup("\n").join(" " * indent + line for indent, line in zip(indents, lines, strict=True))
    more = len(text) - longest
    return body + (Markup('\n<span class="cut">… {} characters more</span>').format(more) if more > 0 else "")


def short_data(value: Any, longest: int = 160) -> Markup:
    """Somebody's data on one line."""
    text = json.dumps(plain(value), ensure_ascii=False, separators=(", ", ": "), default=str)
    cut = Markup('<span class="cut">…</span>') if len(text) > longest else ""
    return _joined(list(pieces(text[:longest]))) + cut


# -- numbers and times ------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """A count: 1,234,567; large ones are short enough for a tile."""
    if value is None:
        return DASH
    if abs(value) >= 10_000_000:
        return f"{value / 1e6:,.1f} M"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"


def rate(value: float | None) -> str:
    """Something per second."""
    if value is None:
        return DASH
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None:
        return DASH
    if value < 1:
        ms = value * 1000
        return "0 s" if value == 0 else f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 0.1 else "< 0.1 ms"
    for limit, unit, name in ((_MINUTE, 1, "s"), (_HOUR, _MINUTE, "min"), (_DAY, _HOUR, "h")):
        if value < limit:
            many = value / unit
            return f"{many:.1f} {name}" if many < 10 else f"{many:.0f} {name}"
    return f"{value / _DAY:.1f} d"


def moment(at: float | None) -> Markup:
    """A time by the server's clock. The script says how long ago that is; without it, the time is UTC."""
    if at is None or not 0 < at < 1e11:
        return NOTHING
    when = datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{}" data-at="{:.3f}" title="{}">{}</time>').format(
        when.isoformat(timespec="milliseconds"), at, when.strftime("%Y-%m-%d %H:%M:%S UTC"), when.strftime("%H:%M:%S")
    )


def ticking(left: float | None) -> Markup:
    """Seconds that run out. The script counts them down between two looks."""
    if left is None:
        return NOTHING
    return Markup('<span class="tick" data-left="{:.2f}">{}</span>').format(left, seconds(left))


def id_time(event: str) -> float | None:
    """When an entry with the id of a stream was written: `1763210000000-0`."""
    first = event.partition("-")[0]
    return int(first) / 1000 if first.isdecimal() and len(first) < 16 else None
