"""What each run of `python -m chaos runs` is to do: drawn from a number, the same in every process."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from holdfast import Holdfast
from holdfast.runs.runs import Runs

COLLECTIONS = ("agent", "plain", "once")
LEASE = 1.0
MAX_ATTEMPTS = 12
MAX_EVENTS = 64
"""Fewer than a talkative run emits, so that some are dropped and readers must be told."""
ON_PURPOSE = "ValueError: on purpose"


class Role(NamedTuple):
    """One run."""

    id: str
    collection: str
    key: str | None
    conflict: str
    input: dict[str, Any]
    """steps; events after each of them; seconds that a step takes; the step at which it fails, or None."""
    stop: float | None
    """Seconds after its start at which somebody wants it to stop; below 0: before."""


def role(schedule: int, number: int) -> Role:
    draw = random.Random(f"{schedule}.{number}")
    collection = draw.choices(COLLECTIONS, (70, 18, 12))[0]
    key, conflict = None, "reject"
    if collection == "agent" and (sort := draw.random()) < 0.35:
        queued = sort < 0.3
        key = f"queue-{draw.randrange(8)}" if queued else f"replace-{draw.randrange(2)}"
        conflict = "queue" if queued else "replace"
    steps = draw.randint(3, 6)
    work = {
        "steps": steps,
        "events": 30 if draw.random() < 0.06 else draw.randint(2, 5),
        "seconds": draw.uniform(0.05, 0.8),
        "fails": draw.randrange(steps) if draw.random() < 0.1 else None,
    }
    stop = draw.choices((draw.uniform(-0.5, 4.0), 11.0), (5, 1))[0] if draw.random() < 0.2 else None
    return Role(f"r{number}", collection, key, conflict, work, stop)


def collections(hf: Holdfast) -> dict[str, Runs]:
    """`agent` has coroutine handlers, `plain` functions in threads; runs of `once` cannot go on in another process."""
    common = {"lease": LEASE, "max_attempts": MAX_ATTEMPTS, "max_events": MAX_EVENTS}
    return {name: hf.runs(name, slots=1, **common) for name in COLLECTIONS}
