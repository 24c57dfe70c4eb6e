"""What a demonstration will do, drawn from a number: the same number, the same plan."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from hashlib import sha256
from json import dumps
from typing import NamedTuple

LEASE = 1.0
"""Seconds that a batch, a run or a lock stays with a worker that gives no sign of life."""
PAUSE = 1.8
"""How long a worker is frozen: past its leases, so that others have taken its work when it wakes."""
USERS = 40
RATE = 150
"""Messages in a second."""
CAPACITY, FLOOD, FLOODS = 100, 130, 2
"""Now and then one user says more at once than may wait: something is dropped, and must be counted."""
RUNS_PER_SECOND = 2.0
EVERY = 1.3
"""Seconds between two strikes, about."""
PRODUCERS = 2
COUNTERS = 3


class Append(NamedTuple):
    """At a moment (in seconds), messages with consecutive numbers from one user, in one call."""

    at: float
    user: str
    first: int
    size: int


class Start(NamedTuple):
    """At a moment, a run of so many steps."""

    at: float
    run: str
    steps: int


class Strike(NamedTuple):
    """At a moment, something happens to one worker while it has what `during` says."""

    at: float
    kind: str
    """kill or pause"""
    worker: int
    during: str
    """batch, run or lock"""


WORST = (("kill", "batch"), ("pause", "lock"), ("kill", "run"))
NEXT = (("pause", "batch"), ("kill", "lock"), ("pause", "run"))
"""All six come up before one comes up again, those three first which find most mistakes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is decided before it begins."""

    seed: int
    processes: int
    seconds: float
    kill: bool
    appends: tuple[Append, ...]
    runs: tuple[Start, ...]
    strikes: tuple[Strike, ...]

    @property
    def messages(self) -> int:
        return sum(one.size for one in self.appends)

    @property
    def users(self) -> list[str]:
        return sorted({one.user for one in self.appends})

    @property
    def digest(self) -> str:
        """A short name of the whole plan: two runs with the same one do the same."""
        return sha256(dumps(asdict(self)).encode()).hexdigest()[:12]

    @property
    def command(self) -> str:
        """What to type to have it again."""
        kill = "" if self.kill else " --no-kill"
        return f"holdfast demo --seed {self.seed} --processes {self.processes} --seconds {self.seconds:g}{kill}"

    def share(self, producer: int) -> tuple[list[Append], list[Start]]:
        """What one producer does."""
        return list(self.appends[producer::PRODUCERS]), list(self.runs[producer::PRODUCERS])


def draw(seed: int, processes: int, seconds: float, kill: bool) -> Plan:
    """Nothing in it depends on anything but the arguments."""
    return Plan(
        seed, processes, float(seconds), kill,
        appends=_appends(random.Random(f"{seed}.appends"), seconds),  # noqa: S311
        runs=_runs(random.Random(f"{seed}.runs"), seconds),  # noqa: S311
        strikes=_strikes(random.Random(f"{seed}.strikes"), processes, seconds) if kill else (),  # noqa: S311
    )  # fmt: skip


def _appends(numbers: random.Random, seconds: float) -> tuple[Append, ...]:
    calls = max(20, int(seconds * RATE))
    floods = set(numbers.sample(range(calls), FLOODS))
    made: list[Append] = []
    first = 0
    for at, moment in enumerate(sorted(numbers.uniform(0.0, seconds) for _ in range(calls))):
        size = FLOOD if at in floods else 1
        made.append(Append(round(moment, 4), f"user-{numbers.randrange(USERS)}", first, size))
        first += size
    return tuple(made)


def _runs(numbers: random.Random, seconds: float) -> tuple[Start, ...]:
    moments = sorted(numbers.uniform(0.0, seconds * 0.95) for _ in range(max(4, int(seconds * RUNS_PER_SECOND))))
    return tuple(Start(round(moment, 4), f"run-{at}", numbers.randint(8, 20)) for at, moment in enumerate(moments))


def _strikes(numbers: random.Random, processes: int, seconds: float) -> tuple[Strike, ...]:
    count = max(len(WORST), int(seconds / EVERY))
    kinds: list[tuple[str, str]] = []
    while len(kinds) < count:
        for bag in (WORST, NEXT):
            kinds += numbers.sample(bag, len(bag))
    struck: dict[int, float] = {}
    made = []
    for at, (kind, during) in enumerate(kinds[:count]):
        moment = round(seconds * (at + 0.5 + numbers.uniform(-0.3, 0.3)) / count, 3)
        # Not one that was just struck, as long as there are others: it is frozen, or its successor starts.
        order = numbers.sample(range(processes), processes)
        worker = min(order, key=lambda one: max(moment - 2 * PAUSE, struck.get(one, -PAUSE)))
        struck[worker] = moment
        made.append(Strike(moment, kind, worker, during))
    return tuple(made)
