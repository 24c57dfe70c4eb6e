"""What can be seen of the fleet: its processes, what they use, what they did, and what operators did."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

STEPS = (10.0, 300.0)
"""Seconds of a slot, short and long."""
MISSED = 3.0
"""After so many intervals without a report a process is taken for gone."""
BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the classes in which times are counted; what took longer is in one more."""
TIMED = ("wait", "hold", "absorb", "run", "deliver")
_TIME = re.compile(r"t:([a-z]+):(\d+)")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the fleet, as it reported last. Times are seconds since 1970 by the server's clock."""

    id: str
    host: str
    pid: int
    label: str
    version: str
    since: float
    seen: float
    alive: bool
    """False: it has not reported for three intervals, and did not say that it ends. Kept for an hour."""
    works: tuple[str, ...]
    """What it works on, as `kind:name`."""
    uses: tuple[str, ...]
    """Every collection it named, as `kind:name`."""
    leases: int
    """Held right now, like the following."""
    batches: int
    runs: int


@dataclass(frozen=True, slots=True)
class Named:
    """A collection that some process used in the last 30 days."""

    kind: str
    """buffer | runs | sessions | monitor | gate | once"""
    name: str
    seen: float


@dataclass(frozen=True, slots=True)
class Times:
    """How long something took: in so many cases, half of them and 99 % of them at most so many seconds."""

    count: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Slot:
    """What the fleet did in one piece of time, which began at `at` (seconds since 1970)."""

    at: float
    counts: dict[str, int]
    times: dict[str, Times]
    """`wait` for a lease, `hold` of one, `absorb` a batch, `run`, `deliver` to a subscriber."""
    gauges: dict[str, float]
    """What nodes have measured, last in this piece of time."""


@dataclass(frozen=True, slots=True)
class Series:
    """The last pieces of time, oldest first; the last one is not over yet."""

    step: float
    """Seconds of each."""
    now: float
    slots: list[Slot]


@dataclass(frozen=True, slots=True)
class Action:
    """What an operator did."""

    id: str
    at: float
    action: str
    target: str
    reason: str
    by: str
    outcome: str
    """Empty: not known; whoever did it may have died meanwhile."""


class About(msgspec.Struct, omit_defaults=True):
    """What a process says of itself."""

    host: str
    pid: int
    label: str = ""
    version: str = ""
    every: float = 5.0
    works: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    leases: int = 0
    batches: int = 0
    runs: int = 0


def parse_processes(reply: Sequence[Any]) -> list[Process]:
    now, found = int(reply[1]), []
    for at in range(2, len(reply), 4):
        try:
            about = msgspec.json.decode(reply[at + 3], type=About)
        except msgspec.DecodeError:
            continue  # of another version, or somebody else's
        seen = int(float(reply[at + 1])) / 1000
        found.append(
            Process(
                reply[at].decode(), about.host, about.pid, about.label, about.version, int(reply[at + 2]) / 1000, seen,
                now / 1000 - seen <= MISSED * about.every, about.works, about.uses, about.leases, about.batches,
                about.runs,
            )
        )  # fmt: skip
    return found


def parse_names(reply: Sequence[Any]) -> list[Named]:
    found = []
    for name, seen in zip(reply[2][::2], reply[2][1::2], strict=True):
        kind, _, rest = name.decode("utf-8", "surrogatepass").partition(":")
        found.append(Named(kind, rest, int(float(seen)) / 1000))
    return found


def parse_totals(reply: Sequence[Any]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in zip(reply[3][::2], reply[3][1::2], strict=True)}


def parse_series(reply: Sequence[Any], step: float) -> Series:
    last, slots = int(reply[2]), reply[3:]
    return Series(
        step, int(reply[1]) / 1000,
        [_slot((last - len(slots) + 1 + at) * step, flat) for at, flat in enumerate(slots)],
    )  # fmt: skip


def _slot(at: float, flat: Sequence[bytes]) -> Slot:
    counts: dict[str, int] = {}
    gauges: dict[str, float] = {}
    classes: dict[str, dict[int, int]] = {}
    for raw, value in zip(flat[::2], flat[1::2], strict=True):
        name = raw.decode("utf-8", "replace")
        timed = _TIME.fullmatch(name)
        if timed:
            classes.setdefault(timed[1], {})[int(timed[2])] = int(value)
        elif name.startswith("g:"):
            gauges[name[2:]] = float(value)
        else:
            counts[name] = int(value)
    return Slot(at, counts, {name: merged([found]) for name, found in classes.items()}, gauges)


def merged(many: Sequence[dict[int, int]]) -> Times:
    """The bounds below which half and 99 % of the cases are, of classes that are counted together."""
    total: dict[int, int] = {}
    for one in many:
        for number, count in one.items():
            total[number] = total.get(number, 0) + count
    count = sum(total.values())

    def below(part: float) -> float:
        seen = 0
        for number in sorted(total):
            seen += total[number]
            if seen >= part * count:
                return BOUNDS[min(number, len(BOUNDS) - 1)]
        return 0.0

    return Times(count, below(0.5), below(0.99))


def parse_actions(reply: Sequence[Any]) -> list[Action]:
    found = []
    for raw, flat, outcome in reply[1:]:
        fields = {k.decode(): v.decode("utf-8", "replace") for k, v in zip(flat[::2], flat[1::2], strict=True)}
        entry = raw.decode()
        found.append(
            Action(
                entry, int(entry.partition("-")[0]) / 1000, fields["action"], fields["target"], fields["reason"],
                fields["by"], outcome.decode("utf-8", "replace"),
            )
        )  # fmt: skip
    return found
