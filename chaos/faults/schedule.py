"""Which fault when: drawn from a number, so that a run can be repeated."""

from __future__ import annotations

import random
from typing import NamedTuple

KINDS = {
    "single": ("kill worker", "pause worker", "restart server", "cut", "drop replies", "black hole"),
    "sentinel": ("kill worker", "pause worker", "failover"),
    "cluster": ("kill worker", "pause worker", "failover", "migrate"),
}
RUN_KINDS = {server: (*kinds, "kill worker", "pause worker", "drain worker") for server, kinds in KINDS.items()}
"""For runs: more of what ends their owners, and orderly ends too."""
REST = {"restart server": 3.0, "failover": 8.0}
"""Seconds of peace after a fault that takes the whole server away."""


class Fault(NamedTuple):
    after: float
    """Seconds since the one before."""
    kind: str
    pick: int
    """A number from which the victim is chosen."""


def draw(
    number: int, server: str, seconds: float, kinds: dict[str, tuple[str, ...]] = KINDS, pace: float = 1.0
) -> list[Fault]:
    """Faults for so many seconds, about `pace` seconds apart; all of `kinds` come up before they come up again."""
    numbers = random.Random(number)
    faults: list[Fault] = []
    passed, bag = 0.0, list[str]()
    rest = 2.0  # first everybody gets to work
    while passed < seconds:
        if not bag:
            bag = list(kinds[server])
            numbers.shuffle(bag)
        kind = bag.pop()
        faults.append(Fault(rest, kind, numbers.randrange(1 << 16)))
        passed += rest
        rest = REST.get(kind, 0.0) + (0.5 + numbers.random()) * pace
    return faults
