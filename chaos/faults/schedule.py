"""Which fault when: drawn from a number, so that a run can be repeated."""

from __future__ import annotations

import random
from typing import NamedTuple

KINDS = {
    "single": ("kill worker", "pause worker", "restart server", "cut", "drop replies", "black hole"),
    "sentinel": ("kill worker", "pause worker", "failover"),
    "cluster": ("kill worker", "pause worker", "failover", "migrate"),
}
REST = {"restart server": 3.0, "failover": 8.0}
"""Seconds of peace after a fault that takes the whole server away."""


class Fault(NamedTuple):
    after: float
    """Seconds since the one before."""
    kind: str
    pick: int
    """A number from which the victim is chosen."""


def draw(number: int, server: str, seconds: float) -> list[Fault]:
    """Faults for so many seconds; every kind comes up once before one comes up again."""
    numbers = random.Random(number)
    faults: list[Fault] = []
    passed, bag = 0.0, list[str]()
    rest = 2.0  # first everybody gets to work
    while passed < seconds:
        if not bag:
            bag = list(KINDS[server])
            numbers.shuffle(bag)
        kind = bag.pop()
        faults.append(Fault(rest, kind, numbers.randrange(1 << 16)))
        passed += rest
        rest = REST.get(kind, 0.0) + 0.5 + numbers.random()
    return faults
