"""Tells the fleet what this process is and does, every few seconds, from the keeper's loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable

import msgspec

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.engine.flow import Flow
from holdfast.errors import HoldfastError
from holdfast.events import Acked, Delivered, Event, Granted, Released, Renewed, RunFinished
from holdfast.fleet import flows
from holdfast.fleet.record import BOUNDS, TIMED, About
from holdfast.observe.counters import Counters

NAMES_AT_ONCE = 200
MOST_NAMES = 1000
MOST_TOLD = 50_000
_LABELS = {timed: [f"t:{timed}:{number}" for number in range(len(BOUNDS) + 1)] for timed in TIMED}


class Tally:
    """Counts what happens between two reports, and how long it took. Thread-safe.

    What a lock does thousands of times in a second is counted here; for the rest there are the counters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._rest = Counters()
        self._known: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind is Granted:
            self.timed("granted", "wait", event.waited)  # type: ignore[attr-defined]
        elif kind is Released:
            self.timed("released", "hold", event.held)  # type: ignore[attr-defined]
        elif kind is Renewed:
            with self._lock:
                self._counts["renewed"] += 1
        else:
            self._rest(event)
            match event:
                case Acked(held=held):
                    self._time("absorb", held)
                case RunFinished(held=held):
                    self._time("run", held)
                case Delivered(seconds=seconds):
                    self._time("deliver", seconds)

    def add(self, name: str, number: int) -> None:
        """Count what is no event, because it happens too often."""
        with self._lock:
            self._counts[name] += number

    def timed(self, name: str, timed: str, seconds: float) -> None:
        """Count it, and in which class its time was."""
        label = _LABELS[timed][bisect_left(BOUNDS, seconds)]
        with self._lock:
            self._counts[name] += 1
            self._counts[label] += 1

    def _time(self, timed: str, seconds: float) -> None:
        with self._lock:
            self._counts[_LABELS[timed][bisect_left(BOUNDS, seconds)]] += 1

    def __bool__(self) -> bool:
        """Was anything counted since?"""
        return bool(self._counts) or self._rest.counts() != self._known

    def risen(self) -> dict[str, int]:
        """By how much each counter rose since the last time this was asked."""
        with self._lock:
            counts, self._counts = self._counts, defaultdict(int)
        now = self._rest.counts()
        for name, rise in (now - self._known).items():
            counts[name] += rise
        self._known = now
        return {name: rise for name, rise in counts.items() if rise > 0}


class Reporter:
    """One for each open client. `start` and `last` are called in the client's own thread or loop."""

    def __init__(self, core: Core, version: str) -> None:
        self._core = core
        self._version = version
        self._begin()

    def _begin(self) -> None:
        self._tally = Tally()
        self._number = 0
        self._unsent: tuple[list[str], dict[str, int]] | None = None
        """Names and counts of the report whose answer did not come: they are sent again as they were, or they would be
        counted twice."""
        self._told: set[str] = set()
        self._failed = False
        self._leaving = False
        self._chore: Callable[[], None] = lambda: None

    def start(self) -> None:
        """From now on, on the keeper's loop. It ends with the keeper."""
        self._core.tally = self._core.events.tally = self._tally
        self._chore = self._core.keeper.every(self._core.settings.report, self._report)

    def after_fork(self) -> None:
        """The child is another process, and what the parent did is the parent's to tell."""
        self._begin()
        self.start()

    async def _report(self, driver: AsyncDriver) -> None:
        """One that fails is made up for by the next: what it would have told is kept."""
        if self._leaving:
            return
        try:
            await driver.run(self._send(bye=False))
            self._failed = False
        except asyncio.CancelledError:
            raise
        except HoldfastError as error:
            if not self._failed:
                self._core.warn(f"the fleet was not told what this process does; it is tried again: {error}")
            self._failed = True

    def last(self) -> Flow[None]:
        """Before the client closes: what was done since, and goodbye. Not important enough to wait for."""
        self._leaving = True
        self._chore()
        if self._failed or not (self._number or self._core.used or self._tally):
            return
        with contextlib.suppress(HoldfastError):
            if self._unsent is not None:  # a report under way, or one without an answer: it is counted once
                yield from self._send(bye=False)
            yield from self._send(bye=True)

    def _send(self, *, bye: bool) -> Flow[None]:
        core = self._core
        known = [f"{kind}:{name}" for kind, names in list(core.used.items()) for name in list(names)]
        used = list(dict.fromkeys([*core.working, *known]))
        if self._unsent is None:
            fresh = [name for name in used if name not in self._told][:NAMES_AT_ONCE]
            if self._number % 100 == 0:  # all of them now and then, by turns: what is in use must not be forgotten
                begin = self._number // 100 * MOST_NAMES % max(1, len(used))
                fresh = used[begin : begin + MOST_NAMES]
            self._unsent = (fresh, self._tally.risen())
            self._number += 1
        names, counts = self._unsent
        held = Counter(hold.what for hold in list(core.holds.values()))
        host, _, rest = core.owner.partition(" ")
        pid, _, label = rest.partition(" ")
        about = About(
            host, int(pid), label, self._version, core.settings.report, tuple(map(_text, core.working)),
            tuple(map(_text, used[:NAMES_AT_ONCE])), held["lease"], held["batch"], held["run"],
        )  # fmt: skip
        new = yield from flows.report(core, self._number, msgspec.json.encode(about), names, counts, bye)
        if new and self._number > 1:
            self._told.clear()  # the server has forgotten everything: it is told anew
        if len(self._told) > MOST_TOLD:
            self._told.clear()
        self._told.update(names)
        self._unsent = None


def _text(name: str) -> str:
    """A name may hold what is no text."""
    return name.encode("utf-8", "replace").decode()
