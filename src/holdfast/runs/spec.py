"""What a collection of runs is asked for, checked and with its keys worked out, before anything is sent."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.limits import check_count, check_seconds
from holdfast.engine.payload import canonical
from holdfast.errors import ConfigurationError
from holdfast.keys import Id, encode, id_bytes
from holdfast.settings import MAX_SECONDS

CONFLICTS = ("reject", "queue", "replace", "join")
STATES = ("queued", "running", "stopping", "completed", "failed", "stopped")
ENDED = STATES[3:]
NAME_MAX = 64
KIND_MAX = 64
STEP_NAME_MAX = 512
MIN_LEASE, MAX_LEASE = 0.05, 86_400.0
HEAD = 2
PER_EVENT = 4
"""Bytes that a batch of events, and each event in it, has besides the data."""
REASON_MAX = 2000


class Place(NamedTuple):
    """Where one run is."""

    run: str
    """As it stands in keys."""
    key: str
    events: str
    channel: str


class RunSpec:
    """Name, bounds and life of a collection. All of it lives in one cluster slot: a run, its key and the queue are
    looked at together."""

    def __init__(
        self, core: Core, name: str, *, kind: str, slots: int, conflict: str, lease: float | None,
        max_attempts: int | None, retention: float | None, max_events: int | None, max_event_bytes: int | None,
        emit_delay: float | None, max_waiting: int | None, max_queued: int | None, stuck_after: float | None,
        archive: bool,
    ) -> None:  # fmt: skip
        s = core.settings
        part = encode(id_bytes(name))
        if not isinstance(name, str) or len(part) > NAME_MAX:
            raise ConfigurationError(f"name runs with text of at most {NAME_MAX} bytes, not {name!r}")
        if not isinstance(kind, str) or not kind or len(kind.encode("utf-8", "surrogatepass")) > KIND_MAX:
            raise ConfigurationError(f"pass kind as text of 1 to {KIND_MAX} bytes, not {kind!r}")
        self.name = name
        self.kind = kind
        self.slots = check_count("slots", slots, 1, 10_000)
        self.conflict = check_conflict(conflict)
        self.lease = s.ttl if lease is None else check_seconds("lease", lease, MIN_LEASE, MAX_LEASE)
        self.attempts = s.max_attempts if max_attempts is None else check_count("max_attempts", max_attempts, 1, 60_000)
        self.retention = (
            s.run_retention if retention is None else check_seconds("retention", retention, 0.05, MAX_SECONDS)
        )
        self.max_events = s.run_events if max_events is None else check_count("max_events", max_events, 8, 10_000_000)
        self.max_bytes = (
            s.run_event_bytes
            if max_event_bytes is None
            else check_count("max_event_bytes", max_event_bytes, 1024, 1 << 30)
        )
        self.max_event = min(s.max_message_bytes, self.max_bytes // 2 - HEAD - PER_EVENT)
        self.max_data = s.max_message_bytes
        self.delay = s.emit_delay if emit_delay is None else check_seconds("emit_delay", emit_delay, 0.0, 60.0)
        self.waiting = s.run_waiting if max_waiting is None else check_count("max_waiting", max_waiting, 0, 10_000)
        self.queued = s.run_queued if max_queued is None else check_count("max_queued", max_queued, 1, 100_000_000)
        self.stuck = (
            s.run_stuck if stuck_after is None else check_seconds("stuck_after", stuck_after, 0.05, MAX_SECONDS)
        )
        if not isinstance(archive, bool):
            raise ConfigurationError(f"pass archive as True or False, not {archive!r}")
        self.archive = archive
        self.tag = f"runs.{part}"
        self.base = core.keys.base(self.tag)
        self.due, self.held, self.idle = f"{self.base}due", f"{self.base}held", f"{self.base}idle"
        self.none = f"{self.base}none"
        """A key that never is."""
        self.signals = f"{self.base}sig:"
        self.limits = b"".join(
            number.to_bytes(size, "big")
            for number, size in (
                (self.slots, 2), (int(self.retention * 1000), 5), (self.max_events, 4), (self.max_bytes, 5)
            )
        )  # fmt: skip

    def place(self, run: Id) -> Place:
        part = encode(id_bytes(run))
        return self.place_of(part)

    def place_of(self, part: str) -> Place:
        return Place(part, f"{self.base}r:{part}", f"{self.base}e:{part}", f"{self.base}ev:{part}")

    def digest(self, key: str, data: bytes) -> bytes:
        """Of what a run is started with: the same run id with something else is a mistake."""
        mark = hashlib.blake2b(digest_size=16)
        for part in (key.encode(), self.kind.encode(), canonical(data)):
            mark.update(len(part).to_bytes(8, "big"))
            mark.update(part)
        return mark.digest()


def check_conflict(conflict: str) -> str:
    if conflict not in CONFLICTS:
        raise ConfigurationError(f"pass conflict as one of {', '.join(CONFLICTS)}, not {conflict!r}")
    return conflict


def check_state(state: str) -> str:
    if state not in STATES:
        raise ConfigurationError(f"pass state as one of {', '.join(STATES)}, not {state!r}")
    return state


def check_step(name: str) -> None:
    try:
        size = len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= STEP_NAME_MAX:
        raise ConfigurationError(f"name a step with text of 1 to {STEP_NAME_MAX} bytes, not {name!r}")


def key_part(key: Id | None) -> str:
    return "" if key is None else encode(id_bytes(key))
