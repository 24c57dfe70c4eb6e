"""What a monitor is asked for, checked and with its keys worked out, before anything is sent. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.digest import canonical_json, id_digest, in_key, state_digest, watched
from holdfast.engine.limits import check_count, check_names, check_seconds
from holdfast.engine.payload import decode, encode, trace_of
from holdfast.errors import ConfigurationError, InvalidId, UnreadablePayload
from holdfast.keys import encode as encode_id
from holdfast.keys import id_bytes
from holdfast.monitor.record import Change, Key
from holdfast.settings import MAX_SECONDS

NAME_MAX = 64
MAX_PARTS = 16
MAX_STATE = 262_144
MAX_WINDOW = 7 * 86_400.0
KINDS = {b"f": "first", b"c": "changed", b"s": "settled"}
LATEST = 2**52 / 1e6
"""Times as microseconds stay exact in Lua up to here: the year 2112."""


class Seen(NamedTuple):
    """One observation, ready to be sent."""

    source: str
    key: Key
    place: str
    digest: bytes
    state: bytes
    identity: bytes
    observed: bytes


class MonitorSpec:
    """Name, watched fields and bounds of a monitor. All of it lives in one cluster slot: a state is compared, stored
    and put into the log in one step."""

    def __init__(
        self, core: Core, name: str, *, fields: Iterable[str] | None, ignore: Iterable[str], window: float,
        keep: float | None, backlog: int | None,
    ) -> None:  # fmt: skip
        part = encode_id(id_bytes(name))
        if not isinstance(name, str) or len(part) > NAME_MAX:
            raise ConfigurationError(f"name a monitor with text of at most {NAME_MAX} bytes, not {name!r}")
        s = core.settings
        self.name = name
        self.fields = None if fields is None else check_names("fields", fields)
        self.ignore = check_names("ignore", ignore)
        self.window = check_seconds("window", window, 0.0, MAX_WINDOW)
        kept = s.monitor_keep if keep is None else check_seconds("keep", keep, 0.05, MAX_SECONDS)
        self.keep = max(kept, 2 * self.window)
        self.backlog = s.monitor_backlog if backlog is None else check_count("backlog", backlog, 10, 1_000_000)
        self.limit = min(s.max_message_bytes, MAX_STATE)
        self.tag = f"monitor.{part}"
        self.base = core.keys.base(self.tag)
        self.channel = f"{self.base}ch"
        self.none = f"{self.base}none"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MonitorSpec) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def key(self, name: str) -> str:
        return self.base + name

    def place(self, source: str, key: Key) -> str:
        """Where the state of a thing is. Raises InvalidId for what can be none."""
        if not isinstance(source, str):
            raise InvalidId(f"pass the source as text, not {type(source).__name__}")
        check_part(source)
        return f"{self.base}s:{in_key(id_digest((source, check_key(key))))}"

    def seen(self, source: str, key: Key, state: Any, observed_at: float | datetime | None) -> Seen:
        """Raises ConfigurationError for what can never be observed. Sends nothing."""
        counted = watched(state, self.fields, self.ignore)
        place = self.place(source, key)
        identity = encode([source, list(key) if isinstance(key, tuple) else key], self.limit)
        return Seen(
            source, key, place, state_digest(counted), encode(counted, self.limit), identity,
            microseconds(observed_at),
        )  # fmt: skip


def check_key(key: Any) -> Key:
    parts = key if isinstance(key, tuple) else (key,)
    if not 0 < len(parts) <= MAX_PARTS or not all(
        isinstance(part, (str, int)) and not isinstance(part, bool) for part in parts
    ):
        raise InvalidId(
            f"pass the key as text, a whole number, or a tuple of at most {MAX_PARTS} of them, not {key!r:.100}"
        )
    for part in parts:
        check_part(part)
    return key  # type: ignore[no-any-return]


def check_part(part: str | int) -> None:
    if isinstance(part, int):
        if not -(2**63) <= part < 2**63:
            raise InvalidId("pass numbers in keys that fit into 64 bits, or as text")
        return
    id_bytes(part)
    try:
        part.encode()
    except UnicodeEncodeError:
        raise InvalidId("pass text that UTF-8 has as source and key: this holds half a character") from None


def microseconds(when: float | datetime | None) -> bytes:
    """Nothing means now, by the server's clock."""
    if when is None:
        return b""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ConfigurationError("pass observed_at with a time zone: without one it means something else elsewhere")
        when = when.timestamp()
    if isinstance(when, bool) or not isinstance(when, (int, float)) or not 0 <= when < LATEST:
        raise ConfigurationError(f"pass observed_at as seconds since 1970 or a datetime, not {when!r:.100}")
    return b"%d" % round(when * 1e6)


def parse_change(monitor: str, number: bytes, fields: Sequence[Any]) -> Change:
    """A change as it stands in the log."""
    try:
        return _change(monitor, number, dict(zip(fields[::2], fields[1::2], strict=True)))
    except UnreadablePayload:
        raise
    except Exception as error:  # whatever somebody else may have put there
        raise UnreadablePayload(f"inspect what wrote this change: {error!r}") from None


def _change(monitor: str, number: bytes, values: Mapping[bytes, bytes]) -> Change:
    source, key = decode(values[b"i"])
    return Change(
        id=number.decode().rjust(16, "0"), monitor=monitor, source=source,
        key=tuple(key) if isinstance(key, list) else key, kind=KINDS.get(values[b"k"], "changed"),
        before=decode(values[b"b"]) if values[b"b"] else None, after=decode(values[b"a"]),
        observed_at=int(values[b"o"]) / 1e6, at=int(number) / 1e6, trace=trace_of(values[b"i"]),
    )  # fmt: skip


def to_text(data: Any) -> bytes:
    """A record as canonical JSON."""
    return canonical_json(data).encode()


def from_text(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise UnreadablePayload(f"inspect what wrote this: it is no JSON ({error})") from None
