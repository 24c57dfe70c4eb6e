"""Counters in memory, for a health page or a test; no dependency."""

from __future__ import annotations

import threading
from collections import Counter

from holdfast.events import (
    Acked,
    Buried,
    ClockJumped,
    Dropped,
    Event,
    Expired,
    Expiring,
    Forced,
    Granted,
    HandlerFailed,
    Lost,
    Nacked,
    NearlyFull,
    Refused,
    Released,
    Renewed,
    RenewFailed,
    RunFinished,
    RunQueued,
    RunReturned,
    RunStopping,
    RunStuck,
    RunTaken,
    Taken,
    TakenOver,
    Waited,
)
from holdfast.observe.outcomes import outcomes


class Counters:
    """How often what happened, and how long it took in all. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        with self._lock:
            counted = outcomes(event)
            if counted:
                self._outcomes(counted)
            else:
                self._count(event)

    def _count(self, event: Event) -> None:
        match event:
            case Granted(waited=waited):
                self._add("granted", "wait", waited)
            case Refused(waited=waited):
                self._add("refused", "wait", waited)
            case Released(held=held):
                self._add("released", "hold", held)
            case Lost(what="run") | RunTaken() | RunFinished():
                self._run(event)
            case Lost(what="batch"):
                self._counts["lost_batches"] += 1
            case Lost(held=held, reason=reason):
                self._add("lost", "hold", held)
                self._counts[f"lost: {reason}"] += 1
            case Expired(count=count):
                self._counts["expired"] += count
            case Dropped(count=count, reason=reason):
                self._counts["dropped"] += count
                self._counts[f"dropped: {reason}"] += count
            case Forced(ended=ended):
                self._counts["forced"] += ended
            case Taken(attempt=attempt):
                self._counts["taken"] += 1
                self._counts["redelivered"] += attempt > 1
            case Acked(messages=messages):
                self._counts["acked"] += 1
                self._counts["absorbed"] += messages
            case _ if type(event) in _NAMES:
                self._counts[_NAMES[type(event)]] += 1

    def _outcomes(self, counted: list[tuple[str, str, int]]) -> None:
        """Ids and claims by their outcome alone: `unique`, `duplicate`, `acquired`, `rejected`; `suppressed` too."""
        for kind, outcome, number in counted:
            short = kind in ("ids", "claims") or outcome == "suppressed"
            self._counts[outcome if short and outcome != "lost" else f"{kind}: {outcome}"] += number

    def _run(self, event: Event) -> None:
        match event:
            case RunTaken(attempt=attempt):
                self._counts["runs_taken"] += 1
                self._counts["runs_taken_over"] += attempt > 1
            case RunFinished(state=state):
                self._counts[f"runs_{state}"] += 1
            case _:
                self._counts["lost_runs"] += 1

    def _add(self, count: str, timing: str, seconds: float) -> None:
        self._counts[count] += 1
        self._seconds[timing] += seconds  # type: ignore[assignment]

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    @property
    def success_rate(self) -> float:
        """Of all attempts to acquire, the part that was granted; 1.0 before the first."""
        asked = self._counts["granted"] + self._counts["refused"]
        return self._counts["granted"] / asked if asked else 1.0

    @property
    def mean_wait(self) -> float:
        """Seconds from asking to the answer, on average."""
        asked = self._counts["granted"] + self._counts["refused"]
        return self._seconds["wait"] / asked if asked else 0.0

    @property
    def mean_hold(self) -> float:
        """Seconds from the grant to its end, on average."""
        ended = self._counts["released"] + self._counts["lost"]
        return self._seconds["hold"] / ended if ended else 0.0

    def counts(self) -> Counter[str]:
        """How often what happened until now."""
        with self._lock:
            return self._counts.copy()

    def as_dict(self) -> dict[str, float]:
        """Everything at once, for a health page."""
        with self._lock:
            return {
                **dict(sorted(self._counts.items())),
                "success_rate": self.success_rate, "mean_wait": self.mean_wait, "mean_hold": self.mean_hold,
            }  # fmt: skip


_NAMES: dict[type[Event], str] = {
    TakenOver: "taken_over", Renewed: "renewed", RenewFailed: "renew_failed", Waited: "waited",
    ClockJumped: "clock_jumped", Nacked: "nacked", Buried: "buried", HandlerFailed: "handler_failed",
    NearlyFull: "nearly_full", Expiring: "expiring", RunQueued: "runs_queued", RunReturned: "runs_returned",
    RunStopping: "runs_stop_asked", RunStuck: "runs_stuck",
}  # fmt: skip
