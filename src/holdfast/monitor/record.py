"""What a monitor speaks of: changes, who is told of them, and how telling went. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.engine.digest import canonical_json
from holdfast.errors import HoldfastError

Part = str | int
Key = Part | tuple[Part, ...]
"""What is observed: text, a number, or several of them, which are never joined."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something is not as it was. `id` grows along the monitor's log, so text order is the order of changes."""

    id: str
    monitor: str
    source: str
    key: Key
    kind: str
    """`first`: not known before. `changed`. `settled`: the window ended, and this is what it is now."""
    before: Any
    after: Any
    observed_at: float
    """Seconds since 1970, as the observer said, or the server's time."""
    at: float
    """The server's time when it was found."""
    trace: str | None = field(default=None, repr=False, compare=False)
    """The W3C traceparent of the span in which it was observed, where tracing was on."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that differ, where both states are dicts; else nothing."""
        if not (isinstance(self.before, dict) and isinstance(self.after, dict)):
            return ()
        names = [*self.before, *(name for name in self.after if name not in self.before)]
        return tuple(
            name for name in names
            if (name in self.before) != (name in self.after) or _differ(self.before[name], self.after[name])
        )  # fmt: skip


def _differ(before: Any, after: Any) -> bool:
    """As digests see it: 1 is 1.0, and True is not 1."""
    return before != after or (not isinstance(before, str) and canonical_json(before) != canonical_json(after))


@dataclass(frozen=True, slots=True)
class Delivery:
    """Changes that are told to one subscriber in one message. Told again, it is the same: same id, same changes."""

    id: str
    """The idempotency key."""
    monitor: str
    subscriber: str
    changes: tuple[Change, ...]
    attempt: int
    at: float
    """The time now, by the server's clock, in seconds since 1970."""


class DeliveryFailed(HoldfastError):
    """A message was not accepted. `retry`: may it be different next time? `after`: not before so many seconds."""

    def __init__(self, message: str, *, retry: bool = True, after: float | None = None, **where: object) -> None:
        self.retry = retry
        self.after = after
        super().__init__(message, **where)  # type: ignore[arg-type]


class Sink(Protocol):
    """Where changes are told."""

    async def send(self, delivery: Delivery) -> str:
        """Tell them, and answer a short text for the log, such as "HTTP 200".

        Whatever it raises is a failure: it is tried again later, unless it is a DeliveryFailed that says not to."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Who is told, of what, and how. Empty filters let everything through; several filters must all agree.

    `sink` is `webhook`, `slack`, `dingtalk` or `apprise`, and `target` its URL. (`call` is that of functions, which
    are registered with `Monitor.subscriber`.) `sources`: only these. `keys`: patterns with `*` and `?`; for a key
    that is a tuple a tuple of patterns, one for each part. `fields`: only when one of these changed. `min_change`:
    a numeric field must have moved by so much, or by a share such as "5%"; one of those named is enough. `first`:
    also of what was not known before. `interval`: one message in so many seconds at most, with all changes since.
    `quiet`: from and to, such as ("22:00", "07:00") in `timezone`; what comes then is told at its end. `retries`
    times after `retry_delay` seconds, each time multiplied by `backoff`, and spread by `jitter` (0 to 1) of it."""

    name: str
    sink: str
    target: str = field(repr=False)
    """Not shown: the URL of many a receiver is itself a secret."""
    secret: str = field(default="", repr=False)
    sources: tuple[str, ...] = ()
    keys: tuple[str | tuple[str, ...], ...] = ()
    fields: tuple[str, ...] = ()
    min_change: Mapping[str, float | str] = field(default_factory=dict)
    first: bool = False
    interval: float = 0.0
    quiet: tuple[str, str] | None = None
    timezone: str = "UTC"
    max_changes: int = 100
    retries: int = 3
    retry_delay: float = 5.0
    backoff: float = 1.0
    jitter: float = 0.0
    timeout: float = 10.0
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Push:
    """One attempt to tell, for the log."""

    monitor: str
    subscriber: str
    delivery: str
    attempt: int
    changes: int
    outcome: str
    """`delivered`, `retried`, `dead`."""
    detail: str
    latency: float
    """Seconds that the attempt took."""
    at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What something was at a time."""

    id: str
    source: str
    key: Key
    kind: str
    state: Any
    observed_at: float


class Store(Protocol):
    """Where a monitor keeps what must last. Every method blocks, and is called in a thread."""

    def subscribers(self, monitor: str) -> Sequence[Subscriber]:
        """All of them, in the order of their names."""

    def put_subscriber(self, monitor: str, subscriber: Subscriber) -> None:
        """Add, or replace the one of that name."""

    def remove_subscriber(self, monitor: str, name: str) -> bool:
        """Answers False if there was none."""

    def keep(self, monitor: str, changes: Sequence[Change]) -> None:
        """Store what each was changed to. The same change again changes nothing."""

    def record(self, pushes: Sequence[Push]) -> None:
        """Add to the push log."""

    def history(
        self, monitor: str, source: str, key: Key, *, limit: int, since: float | None, until: float | None
    ) -> Sequence[Snapshot]:
        """Newest first."""

    def pushes(self, monitor: str, subscriber: str | None, limit: int) -> Sequence[Push]:
        """Newest first."""

    def prune(self, monitor: str, seconds: float) -> int:
        """Remove snapshots and pushes that are older. Answers how many."""


Handler = Callable[[Delivery], Any]
