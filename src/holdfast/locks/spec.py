"""What a lock is asked for, checked and with its keys worked out, before anything is sent."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine.core import Core
from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError
from holdfast.keys import Id, decode, encode, id_bytes, shard_of
from holdfast.settings import MAX_SECONDS

ROOM = "locks"
RW_PERMITS = 1_000_000
"""A read/write lock is this many permits: a reader takes one, a writer all."""
MAX_PERMITS = 1_000_000
MIN_TTL = 0.05
KNOWN_SPECS = 4096
MAX_TTL = MAX_SECONDS

Ttl = float | int | str | None


class Place(NamedTuple):
    """Where a lock lives: one shard, so that one script reaches all of it."""

    name: str
    """For people."""
    part: str
    """The name as it stands in keys."""
    kind: str
    tag: str
    lock: str
    queue: str
    shard: str
    audit: str
    channels: str

    @property
    def keys(self) -> tuple[str, str, str]:
        return (self.lock, self.queue, self.shard)


def place(core: Core, kind: str, name: Id) -> Place:
    raw = id_bytes(name)
    tag = core.keys.tag(ROOM, shard_of(raw))
    base = core.keys.base(tag)
    part = encode(raw)
    shown = decode(part)
    return Place(
        shown if isinstance(shown, str) else part,
        part,
        kind,
        tag,
        f"{base}{kind}:{part}",
        f"{base}q.{kind}:{part}",
        f"{base}shard",
        f"{base}audit",
        f"{base}sig:",
    )


class Spec(NamedTuple):
    """One way of holding a lock: how many of its permits, for how long, and how to wait for them."""

    place: Place
    weight: int
    limit: int
    ttl: float
    fair: bool
    renew: bool
    max_hold: float | None
    replicas: int
    replica_timeout: float
    reentrant: bool


def seconds_of(core: Core, ttl: Ttl) -> float:
    """A number of seconds, or a class: short, medium, long."""
    if ttl is None:
        return core.settings.ttl
    if isinstance(ttl, str):
        classes = {
            "short": core.settings.ttl_short, "medium": core.settings.ttl_medium, "long": core.settings.ttl_long,
        }  # fmt: skip
        if ttl not in classes:
            raise ConfigurationError(f"pass ttl as seconds or as one of {', '.join(classes)}, not {ttl!r}")
        return classes[ttl]
    return check_seconds("ttl", ttl, MIN_TTL, MAX_TTL)


def make_spec(
    core: Core, kind: str, name: Id, *, weight: int, limit: int, ttl: Ttl, fair: bool, renew: bool,
    max_hold: float | None, replicas: int, replica_timeout: float, reentrant: bool,
) -> Spec:  # fmt: skip
    seconds = seconds_of(core, ttl)
    if max_hold is not None:
        # The server must not keep it longer either, should this process hang.
        seconds = min(seconds, check_seconds("max_hold", max_hold, MIN_TTL, MAX_TTL))
    return Spec(
        place=place(core, kind, name),
        weight=weight,
        limit=limit,
        ttl=seconds,
        fair=bool(fair),
        renew=bool(renew),
        max_hold=max_hold,
        replicas=check_count("replicas", replicas, 0, 100),
        replica_timeout=check_seconds("replica_timeout", replica_timeout, 0.001, 60.0),
        reentrant=reentrant,
    )
