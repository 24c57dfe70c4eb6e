"""Runs and their events, as they come from the server."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.payload import decode
from holdfast.errors import InvalidId, NewerPayload, ServerError, UnreadablePayload
from holdfast.keys import Id
from holdfast.keys import decode as decode_id
from holdfast.runs.spec import ENDED, HEAD, PER_EVENT, STATES

Position = tuple[int, int]
START: Position = (0, 0)
_POSITION = re.compile(r"(\d{1,15})-(\d{1,10})")
_RECORD = struct.Struct(">BBBHHHQQIQQQQQQIIQIQIIQIHQIQ")
_VERSION = 1
_WAITS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it was when asked. Times are seconds since the epoch by the server's clock, None: not yet."""

    id: Id
    state: str
    """queued, running, stopping, completed, failed or stopped; the last three are final."""
    key: Id | None
    kind: str
    owner: str
    """Host, pid and name of the process that has it; empty: nobody."""
    attempt: int
    """How many owners it has had."""
    fence: int
    created: float
    started: float | None
    ended: float | None
    progress: float | None
    """When it last emitted, saved or finished something."""
    heartbeat: float | None
    """When its owner last renewed its lease."""
    remaining: float
    """Seconds until its owner's lease ends unless it is renewed; 0.0: nobody has it."""
    reason: str
    """Why it failed or was stopped."""
    stop_reason: str
    """What the request to stop said."""
    waits: bool
    """Queued, and its key has no free slot."""
    events: int
    """How many events are kept."""
    dropped: int
    """How many events were dropped because there were too many."""
    last_event: str
    input: Any = field(default=None, repr=False)
    """Not in lists."""
    result: Any = field(default=None, repr=False)
    """What the handler returned. Not in lists."""

    @property
    def over(self) -> bool:
        """True once it has ended: completed, failed or stopped."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run. Readers of one process share `data`: do not change it."""

    id: str
    """Later events have higher ids. Pass the last one you saw as `after`."""
    data: Any = field(repr=False)
    at: float
    """Server time, in seconds since the epoch."""
    kind: str = "data"
    """data; resumed: another process goes on, and what came after `data["after"]` is repeated by it; dropped: older
    events are gone; end: the last one; alive: nothing happened."""


def position(text: str) -> Position:
    """Raises InvalidId for text that is no id of an event."""
    found = _POSITION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidId(f"pass the id of an event as it came, like 1763210000000-0, not {text!r}")
    return int(found[1]), int(found[2])


def shown(at: Position) -> str:
    return f"{at[0]}-{at[1]}"


def parse_run(run: str | bytes, fields: Sequence[Any], now: int, strict: bool = False) -> Run:
    """From `m k y o w p i v` of a run's hash, or without the last two."""
    (version, state, flags, attempt, _, _, fence, deadline, span, created, started, ended, progress, _, last_ms,
     last_seq, kept, _, dropped) = _RECORD.unpack_from(fields[0])[:19]  # fmt: skip
    if version != _VERSION:
        raise ServerError("run a newer version here: a newer one wrote this run")
    key, kind, owner, reason, stop_reason = (_text(value) for value in fields[1:6])
    name, data = STATES[state - 1], _data if strict else _shown_data
    return Run(
        id=decode_id(run), state=name, key=decode_id(key) if key else None, kind=kind,
        owner=str(decode_id(owner)) if owner and name in ("running", "stopping") else "", attempt=attempt, fence=fence,
        created=created / 1000, started=started / 1000 if started else None, ended=ended / 1000 if ended else None,
        progress=progress / 1000 if progress else None, heartbeat=(deadline - span) / 1000 if deadline else None,
        remaining=max(0.0, (deadline - now) / 1000), reason=reason, stop_reason=stop_reason,
        waits=bool(flags & _WAITS), events=kept, dropped=dropped,
        last_event=f"{last_ms}-{last_seq}",
        input=data(fields[6]) if len(fields) > 6 else None,
        result=data(fields[7]) if len(fields) > 6 else None,
    )  # fmt: skip


def _text(value: bytes | None) -> str:
    return value.decode("utf-8", "replace") if value else ""


def pack_events(payloads: Sequence[bytes]) -> bytes:
    """A batch of events as it is stored: count, then size and payload of each."""
    parts = [len(payloads).to_bytes(HEAD, "big")]
    for payload in payloads:
        parts.append(len(payload).to_bytes(PER_EVENT, "big"))
        parts.append(payload)
    return b"".join(parts)


def unpack_events(last: Position, blob: bytes) -> list[Event]:
    """The events of a batch whose last one has this id."""
    count, at = int.from_bytes(blob[:HEAD], "big"), HEAD
    events = []
    for number in range(last[1] - count + 1, last[1] + 1):
        size = int.from_bytes(blob[at : at + PER_EVENT], "big")
        at += PER_EVENT
        events.append(Event(f"{last[0]}-{number}", _data(blob[at : at + size]), last[0] / 1000))
        at += size
    return events


def _data(raw: bytes | None) -> Any:
    """None for what is damaged: it must not hide the rest. What a newer version wrote is said to be so."""
    try:
        return decode(raw) if raw else None
    except NewerPayload:
        raise
    except UnreadablePayload:
        return None


def _shown_data(raw: bytes | None) -> Any:
    """None for what cannot be read here: whoever looks at a run wants to see the rest of it."""
    try:
        return _data(raw)
    except NewerPayload:
        return None


def parse_entries(entries: Sequence[Any], after: Position) -> list[Event]:
    """Entries of the stream as events, without those up to `after`."""
    events: list[Event] = []
    for raw, fields in entries:
        last = position(raw.decode())
        if fields[0] == b"b":
            batch = unpack_events(last, fields[1])
            events += (
                batch if after < (last[0], last[1] - len(batch) + 1) else [e for e in batch if position(e.id) > after]
            )
        else:
            data = {"attempt": int(fields[1]), "after": fields[3].decode()}
            events.append(Event(shown(last), data, last[0] / 1000, "resumed"))
    return events


def end_event(last: Position, state: bytes, reason: bytes | None, result: bytes | None) -> Event:
    data = {"state": state.decode(), "reason": _text(reason), "result": _data(result)}
    return Event(shown(last), data, last[0] / 1000, "end")
