"""What can be seen of a lock from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.keys import Id, decode


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds it. `host`, `pid` and `label` are what the holder said of itself."""

    host: str
    pid: int
    label: str
    fence: int
    permits: int
    age: float
    """Seconds since it was granted."""
    remaining: float
    """Seconds until it ends unless it is renewed; 0.0: it has expired and whoever asks next gets it."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """Who waits. `host`, `pid` and `label` are what the waiter said of itself."""

    host: str
    pid: int
    label: str
    permits: int


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock as the server sees it at one moment."""

    name: Id
    kind: str
    """lock | rw | sem"""
    permits: int
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]
    """The first of them, in order."""
    waiting: int
    """How many wait in all."""

    @property
    def held(self) -> bool:
        """Does anybody hold it whose time has not run out?"""
        return any(holder.remaining > 0 for holder in self.holders)

    @property
    def free(self) -> int:
        """Permits that nobody holds now."""
        return self.permits - sum(holder.permits for holder in self.holders if holder.remaining > 0)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One forced release."""

    id: str
    """Server time in ms and a number, as the server's streams have it."""
    kind: str
    name: Id
    reason: str
    by: str
    ended: int
    """How many leases ended."""
    fences: tuple[int, ...]
    owners: tuple[str, ...]


def split_owner(text: bytes) -> tuple[str, int, str]:
    host, _, rest = text.decode("utf-8", "replace").partition(" ")
    pid, _, label = rest.partition(" ")
    return host, int(pid) if pid.isdigit() else 0, label


def parse_lock(
    kind: str, name: str, now: int, flat: Sequence[bytes], tokens: Sequence[bytes], waiting: int
) -> LockInfo:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    holders = []
    for field, value in fields.items():
        if not field.startswith(b"h:"):
            continue
        deadline, weight, fence, granted, _ = (int(part) for part in value.split())
        host, pid, label = split_owner(fields.get(b"o:" + field[2:], b""))
        holders.append(
            Holder(host, pid, label, fence, weight, (now - granted) / 1000, max(0.0, (deadline - now) / 1000))
        )
    waiters = []
    for token in tokens:
        ticket = fields.get(b"w:" + token)
        if ticket is not None:
            host, pid, label = split_owner(fields.get(b"o:" + token, b""))
            waiters.append(Waiter(host, pid, label, int(ticket.split()[1])))
    return LockInfo(
        name=decode(name),
        kind=kind,
        permits=int(fields[b"s"].split()[1]) if b"s" in fields else 1,
        holders=tuple(sorted(holders, key=lambda holder: holder.fence)),
        waiters=tuple(waiters),
        waiting=waiting,
    )


def parse_audit(entry_id: bytes, flat: Sequence[bytes]) -> AuditEntry:
    fields = {k.decode(): v.decode("utf-8", "replace") for k, v in zip(flat[::2], flat[1::2], strict=True)}
    kind, _, part = fields["lock"].partition(":")
    return AuditEntry(
        id=entry_id.decode(),
        kind=kind,
        name=decode(part),
        reason=fields["reason"],
        by=fields["by"],
        ended=int(fields["ended"]),
        fences=tuple(int(fence) for fence in fields["fences"].split()),
        owners=tuple(fields["owners"].split("\n")),
    )
