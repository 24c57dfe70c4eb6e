"""Changes as JSON and as text, in the shape that each receiver reads. What was observed is text, and never markup."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.monitor.record import Change, Delivery, Key

LINE = 500
"""Characters of one line at most. Escaped for Slack it stays below the limit of a block."""
_VALUE = 80
_TITLE = 120
_SLACK_BLOCK = 3000
_SLACK_TOTAL = 12_000
_DINGTALK_BYTES = 20_000
_SPACE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
"""Line ends, control characters, and those that turn the direction of what follows."""
_WIDE = {ord(mark): ord(mark) + 0xFEE0 for mark in "[]*_`#<>~|\\@"}
"""Their full-width twins, which no parser takes for markup. Whether one honours backslashes cannot be known."""


# -- JSON -------------------------------------------------------------------------------------------------------------


def as_json(delivery: Delivery) -> bytes:
    """The body of a webhook. It depends on the delivery's id and changes only, so a repeat has the same bytes."""
    return encoded(
        {
            "id": delivery.id,
            "monitor": delivery.monitor,
            "subscriber": delivery.subscriber,
            "changes": [
                {
                    "id": change.id,
                    "source": change.source,
                    "key": change.key,
                    "kind": change.kind,
                    "before": change.before,
                    "after": change.after,
                    "fields": change.fields,
                    "observed_at": change.observed_at,
                    "at": change.at,
                }
                for change in delivery.changes
            ],
        }
    )


def encoded(value: Any) -> bytes:
    """JSON that any reader takes. Bytes become {"$bytes": base64}."""
    try:
        return json.dumps(value, default=_other, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError):  # what JSON has not: keys that are bytes, NaN, half a surrogate pair
        return json.dumps(_plain(value), separators=(",", ":")).encode()


def _other(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(value).decode()}
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_name(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (str, int, float)) else _other(value)


def _name(key: Any) -> str:
    if isinstance(key, bytes):
        return base64.b64encode(key).decode()
    return key if isinstance(key, str) else json.dumps(_plain(key))


# -- words ------------------------------------------------------------------------------------------------------------


def summary(delivery: Delivery) -> tuple[str, list[str]]:
    """A title, and one line of plain words for each change, such as `venue A 19:00: price 80 → 90`.

    No line ends and no control characters in either; markup is whatever it is: each shape escapes for itself."""
    count = len(delivery.changes)
    several = len({change.source for change in delivery.changes}) > 1
    title = f"{_clean(delivery.monitor, _TITLE)}: {count} {'change' if count == 1 else 'changes'}"
    return title, [_line(change, several) for change in delivery.changes]


def _line(change: Change, with_source: bool) -> str:
    about = f"{_clean(change.source, _VALUE)} · " if with_source else ""
    return _cut(f"{about}{_key(change.key)}: {_what(change)}", LINE)


def _key(key: Key) -> str:
    return " ".join(_clean(str(part), _VALUE) for part in (key if isinstance(key, tuple) else (key,)))


def _what(change: Change) -> str:
    if change.kind == "first":
        return f"new, {_state(change.after)}"
    if change.fields:
        before, after = change.before, change.after
        said = ", ".join(
            f"{_clean(str(name), _VALUE)} {_value(before.get(name))} → {_value(after.get(name))}"
            for name in change.fields
        )
    elif change.before == change.after or isinstance(change.after, dict):
        said = _state(change.after)
    else:
        said = f"{_value(change.before)} → {_value(change.after)}"
    return f"{said} (settled)" if change.kind == "settled" else said


def _state(state: Any) -> str:
    if isinstance(state, dict) and state:
        return ", ".join(f"{_clean(str(name), _VALUE)} {_value(value)}" for name, value in state.items())
    return _value(state)


def _value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case str():
            return _clean(value, _VALUE) or '""'
        case bytes():
            return f"{len(value)} bytes"
        case int() | float() | bool():
            return _cut(str(value).lower(), _VALUE)
    return _clean(encoded(value).decode(), _VALUE)


def _clean(text: str, most: int) -> str:
    return _cut(_SPACE.sub(" ", text[: most * 4]).strip().encode("utf-8", "replace").decode(), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def packed(lines: Sequence[str], room: int, size: Callable[[str], int] = len) -> tuple[list[str], int]:
    """As many lines as there is room for, each with an end, and how many are left out."""
    taken: list[str] = []
    for line in lines:
        room -= size(line) + 1
        if room < 0:
            break
        taken.append(line)
    return taken, len(lines) - len(taken)


def left_out(count: int) -> list[str]:
    return [f"… and {count} more {'change' if count == 1 else 'changes'}"] if count else []


# -- the shapes -------------------------------------------------------------------------------------------------------


def for_slack(delivery: Delivery) -> bytes:
    """Blocks of plain text. Slack takes 50 of them with 3000 characters each, and not much more than this in total."""
    title, lines = summary(delivery)
    shown, missing = packed([_for_slack(line) for line in lines], _SLACK_TOTAL)
    texts = [_for_slack(title), *_joined([*shown, *left_out(missing)], _SLACK_BLOCK)]
    blocks = [{"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}} for text in texts]
    quiet = {"mrkdwn": False, "unfurl_links": False, "unfurl_media": False}
    return encoded({"text": texts[0], "blocks": blocks, **quiet})


def _for_slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _joined(lines: Iterable[str], most: int) -> list[str]:
    """Lines together in texts of at most so many characters."""
    texts: list[str] = []
    for line in lines:
        if texts and len(texts[-1]) + 1 + len(line) <= most:
            texts[-1] += "\n" + line
        else:
            texts.append(line)
    return texts


def for_dingtalk(delivery: Delivery) -> bytes:
    """Markdown of at most 20 000 bytes."""
    title, lines = summary(delivery)
    title = title.translate(_WIDE)
    items = [f"- {line.translate(_WIDE)}" for line in lines]
    # The rest of the body, and the title a second time, have room in what is kept free.
    shown, missing = packed(items, _DINGTALK_BYTES - 1500, lambda item: len(encoded(item)))
    text = "\n".join([f"#### {title}\n", *shown, *(f"- {more}" for more in left_out(missing))])
    return encoded({"msgtype": "markdown", "markdown": {"title": title, "text": text}})


def for_apprise(delivery: Delivery, room: int, *, titled: bool) -> tuple[str, str]:
    """Title and text, of at most so many characters. Not `titled`: the title goes into the text."""
    title, lines = summary(delivery)
    room -= 0 if titled else len(title) + 2
    shown, missing = packed(lines, room - 40)
    if not shown:  # such as in a short message to a phone
        shown, missing = [_cut(lines[0], max(room - 40, 20))], len(lines) - 1
    return title, "\n".join([*shown, *left_out(missing)])
