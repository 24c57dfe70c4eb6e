"""What happened, as typed objects. Metrics, logs and traces are observers of them.

An observer is any callable that takes an event. It is called in the thread or task where the thing happened and must
be quick. One that raises changes nothing: the error is counted and logged once, and the operation goes on.
Without observers no event object is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Event:
    """The root of all events."""

    def as_dict(self) -> dict[str, object]:
        """Its fields, for logs and attributes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Granted(Event):
    """A lease was granted. `waited` seconds passed since it was asked for."""

    name: str
    fence: int
    waited: float
    handed_over: bool = False
    handed_on: bool = False
    """Somebody outside has it, by its token: its end is not seen here."""


@dataclass(frozen=True, slots=True)
class Waited(Event):
    """A caller had to queue; `position` is how many were ahead of it."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """Not acquired: it was busy, or the wait ran out."""

    name: str
    waited: float
    reason: str


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """A lease was renewed for so many seconds."""

    name: str
    fence: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RenewFailed(Event):
    """A renewal got no usable answer before the lease's deadline."""

    name: str
    fence: int
    error: str


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """A lease ended before it was released; `what` is `lease`, or `batch`, `run` or `claim` for the lease of one."""

    name: str
    fence: int
    held: float
    reason: str
    what: str = "lease"


@dataclass(frozen=True, slots=True)
class Expired(Event):
    """Somebody's lease was found expired on the server; `count` of them were ended."""

    name: str
    count: int
    owner: str


@dataclass(frozen=True, slots=True)
class TakenOver(Event):
    """This process was granted what an expired holder had."""

    name: str
    fence: int
    previous_owner: str


@dataclass(frozen=True, slots=True)
class Released(Event):
    """A lease was given back in time."""

    name: str
    fence: int
    held: float


@dataclass(frozen=True, slots=True)
class Forced(Event):
    """An operator ended somebody's lease."""

    name: str
    ended: int
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Dropped(Event):
    """Something was discarded, with the reason: nothing is lost silently."""

    name: str
    what: str
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class NearlyFull(Event):
    """A user's buffer reached four fifths of its capacity: from here on it is not far to dropping."""

    name: str
    key: str
    length: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Expiring(Event):
    """The oldest message of a user has less than an hour (or half its life) left."""

    name: str
    key: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Taken(Event):
    """A batch was taken; an attempt above 1 says that it was handed out before."""

    name: str
    key: str
    batch: str
    attempt: int
    messages: int
    fence: int


@dataclass(frozen=True, slots=True)
class Acked(Event):
    """Messages of a batch were absorbed, `held` seconds after it was taken."""

    name: str
    key: str
    batch: str
    messages: int
    held: float


@dataclass(frozen=True, slots=True)
class Nacked(Event):
    """A batch was given back, to be taken again after `delay` seconds."""

    name: str
    key: str
    batch: str
    attempt: int
    delay: float


@dataclass(frozen=True, slots=True)
class Buried(Event):
    """A batch went to the dead letters: it was tried often enough."""

    name: str
    key: str
    batch: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class HandlerFailed(Event):
    """A handler raised, or took longer than its time limit."""

    name: str
    key: str
    batch: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class RunQueued(Event):
    """A run was started: a worker may take it, or it waits for a slot of its key."""

    name: str
    run: str
    key: str
    waits: bool


@dataclass(frozen=True, slots=True)
class RunTaken(Event):
    """This process became the owner of a run; an attempt above 1 says that it had an owner before."""

    name: str
    run: str
    key: str
    attempt: int
    fence: int


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """A run ended here, `held` seconds after this process took it."""

    name: str
    run: str
    key: str
    state: str
    reason: str
    attempt: int
    held: float


@dataclass(frozen=True, slots=True)
class RunReturned(Event):
    """A run was handed back to the queue, for another process to go on with."""

    name: str
    run: str
    key: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunStopping(Event):
    """This process asked for a run to be stopped; `state` is what it was then."""

    name: str
    run: str
    reason: str
    state: str


@dataclass(frozen=True, slots=True)
class RunStuck(Event):
    """A run has made no progress for so many seconds."""

    name: str
    run: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Filtered(Event):
    """Ids were asked about: so many were `unique`, so many `duplicates`."""

    name: str
    unique: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """Somebody wanted to work on an id: `acquired`, `rejected` (another does) or `duplicate` (it is done)."""

    name: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Gated(Event):
    """A gate has judged `count` states: `first`, `changed`, `repeated` (which is not told) or `unchanged`."""

    name: str
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Outage(Event):
    """The server could not be asked, and `answer` was done instead: `raise`, `allow` or `deny`."""

    name: str
    operation: str
    answer: str


@dataclass(frozen=True, slots=True)
class Observed(Event):
    """A monitor was told of `count` states: `first`, `changed`, `repeated`, `unchanged`, `older` or `full`."""

    name: str
    outcome: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Delivered(Event):
    """A subscriber has accepted so many changes; the attempt that did it took so many seconds."""

    name: str
    subscriber: str
    delivery: str
    changes: int
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NotDelivered(Event):
    """A subscriber did not accept changes. `dead`: they went to the dead letters, else they are tried again."""

    name: str
    subscriber: str
    delivery: str
    changes: int
    attempt: int
    error: str
    dead: bool


@dataclass(frozen=True, slots=True)
class Fetched(Event):
    """A page (its URL without the query) was looked at: `first`, `changed`, `unchanged`, `older` or `failed`."""

    name: str
    page: str
    outcome: str
    error: str
    seconds: float


@dataclass(frozen=True, slots=True)
class FetchFailing(Event):
    """A page failed so many times in a row, in this process. It is told once; what was known of the page stays."""

    name: str
    page: str
    host: str
    failures: int
    error: str


@dataclass(frozen=True, slots=True)
class FetchRecovered(Event):
    """A page that was told to fail can be read again, after so many failures."""

    name: str
    page: str
    host: str
    failures: int


@dataclass(frozen=True, slots=True)
class ClockJumped(Event):
    """The server's clock moved against ours by so many seconds: leases may have overlapped or lasted longer."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ServerWarning(Event):
    """The server works, but is set up so that a restart or failover can forget leases."""

    message: str


Observer = Callable[[Event], None]


class Events:
    """Hands events to observers."""

    __slots__ = ("_complained", "_observers", "failures", "tally")

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers: tuple[Observer, ...] = tuple(observers)
        self._complained: set[int] = set()
        self.failures = 0
        self.tally: Observer | None = None
        """Counts for the reports to the fleet. It is told too, but does not count as somebody who observes."""

    def __bool__(self) -> bool:
        return self.tally is not None or bool(self._observers)

    @property
    def observed(self) -> bool:
        """Does anybody observe who would notice a warning?"""
        return bool(self._observers)

    def add(self, observer: Observer) -> None:
        self._observers = (*self._observers, observer)

    def emit(self, event: Event) -> None:
        if self.tally is not None:
            self.tally(event)
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                self.failures += 1
                if id(observer) not in self._complained:
                    self._complained.add(id(observer))
                    logging.getLogger("holdfast").exception("an observer failed; its next failures are only counted")
