"""The events of one run: what the server has, and what readers saw before some of it was dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from chaos.checker.runs import Final


Position = tuple[int, int]
START: Position = (0, 0)


class Seen(NamedTuple):
    id: str
    kind: str
    data: Any


def at(name: str) -> Position:
    first, _, second = name.partition("-")
    return int(first), int(second)


def missed(view: Sequence[Seen]) -> list[tuple[Position, Position]]:
    """After which event, and up to which, a reader was told that it missed some."""
    found, before = [], START
    for event in view:
        if event.kind == "dropped":
            found.append((before, at(event.id)))
        before = at(event.id)
    return found


class Trail:
    """All events of a run that anybody saw, in order."""

    def __init__(self, views: Sequence[Sequence[Seen]], stored: Sequence[Seen]) -> None:
        self._stored = stored
        self._events: dict[str, Seen] = {}
        self._clashes: list[str] = []
        for event in (event for view in [*views, stored] for event in view if event.kind != "dropped"):
            if self._events.setdefault(event.id, event) != event:
                self._clashes.append(f"{event} and {self._events[event.id]} have one id")
        self.events = sorted(self._events.values(), key=lambda event: at(event.id))
        self._after_gap = self._gaps([missed(source) for source in [*views, stored]])

    def _gaps(self, sources: list[list[tuple[Position, Position]]]) -> set[str]:
        """The events before which there may have been others that were dropped before anybody saw them."""
        found, before = set(), START
        for event in self.events:
            if all(any(first <= before < last for first, last in source) for source in sources):
                found.add(event.id)
            before = at(event.id)
        return found

    def problems(self, final: Final) -> Iterable[tuple[str, str]]:
        """Each is a kind of violation, and what is wrong."""
        for clash in self._clashes:
            yield "views", clash
        ends = [event for event in self.events if event.kind == "end"]
        if len(ends) != 1 or self.events[-1] is not ends[0]:
            yield "ends", f"{len(ends)} ends among {len(self.events)} events, the last is {self.events[-1:]}"
        elif ends[0].data["state"] != final.state:
            yield "ends", f"its end says {ends[0].data['state']}, it is {final.state}"
        yield from self._owners()
        yield from self._numbers(final)

    def _owners(self) -> Iterable[tuple[str, str]]:
        """Once a new owner is there, nothing of an older one comes."""
        fence = attempt = 0
        fences: dict[int, int] = {}
        for event in self.events:
            if event.id in self._after_gap:
                attempt = max(attempt, event.data["attempt"] - 1) if event.kind == "resumed" else 0
            if event.kind == "resumed":
                if event.data["attempt"] <= attempt:
                    yield "fences", f"attempt {event.data['attempt']} came after {attempt}"
                attempt = max(attempt, event.data["attempt"])
            elif event.kind == "data":
                new, number = event.data["fence"], event.data["attempt"]
                if new < fence:
                    yield "fences", f"{event} was written after an owner with fence {fence}"
                if number != attempt and (number < attempt or attempt > 0):
                    yield "fences", f"{event} was written in attempt {attempt}"
                if fences.setdefault(number, new) != new:
                    yield "fences", f"attempt {number} had two owners"
                fence, attempt = max(fence, new), max(attempt, number)

    def _numbers(self, final: Final) -> Iterable[tuple[str, str]]:
        """Without what was repeated, events are numbered from 1 on: none is missing, twice, or out of order."""
        kept: list[Seen] = []
        for event in self.events:
            if event.id in self._after_gap:
                kept = []
            if event.kind == "resumed":
                kept = [one for one in kept if at(one.id) <= at(event.data["after"])]
            elif event.kind == "data":
                kept.append(event)
        numbers = [event.data["n"] for event in kept]
        if any(one + 1 != two for one, two in pairwise(numbers)) or (numbers[:1] > [1] and not self._after_gap):
            yield "numbers", f"{numbers}"
        if final.state == "completed" and numbers and numbers[-1] != final.result["n"]:
            yield "numbers", f"the last is {numbers[-1]}, {final.result['n']} were emitted"

    def differs_later(self, view: Sequence[Seen]) -> str | None:
        """The same for what comes after the last one dropped, where the rest is not known."""
        known = max((last for _, last in missed(self._stored)), default=START)
        return self.differs([event for event in view if at(event.id) > known])

    def differs(self, view: Sequence[Seen]) -> str | None:
        """None if a reader saw what it should: everything once and in order, except what it was told was dropped."""
        position, rest = START, iter([*self.events, None])
        expected = next(rest)
        for event in view:
            if at(event.id) <= position:
                return f"{event.id} came after {position}"
            if event.kind == "dropped":
                while expected is not None and at(expected.id) <= at(event.id):
                    expected = next(rest)
            elif event != expected:
                return f"{event.id} came where {expected and expected.id} should"
            else:
                expected = next(rest)
            position = at(event.id)
        return None if expected is None else f"it missed the last ones, from {expected.id} on"
