"""Does one more user cost more, the more users there are? 1 000, 100 000 and 1 000 000 users with 5 messages each."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..report import number

SIZES = {"1 000 users": 1_000, "100 000 users": 100_000, "1 000 000 users": 1_000_000}
SMALL, *_, LARGE = SIZES
QUICK = 50  # a fiftieth
FLAT = 1.2
LIMIT = 600.0
OPERATIONS = ("append", "take", "ack")
CONTROL = "rpush"


def contestants() -> Iterable[Contestant]:
    version = importlib.metadata.version("holdfast")
    return [Contestant(name, str(size), version, ours=True) for name, size in SIZES.items()]


def turn(who: Contestant, now: Turn) -> Figures:
    users = int(who.lib) // (QUICK if now.quick else 1)
    command = [sys.executable, "-m", "bench.buffers.growth_worker", now.server.addr, str(users)]
    figures: Figures = fleet.run([command], LIMIT).reports[0]
    figures["over_bare"] = figures["bytes"] / figures["bare_bytes"]
    return figures


def bars(results: Results) -> list[Bar]:
    made = []
    for operation in OPERATIONS:
        for key, what in ((f"{operation}_us", "server time"), (f"{operation}_wall", "wall time")):
            shown, ratio = _growth(results, key)
            met = ratio <= FLAT if shown else None
            made.append(Bar(f"{operation}, {what}: {LARGE} over {SMALL}", f"≤ {FLAT}", shown, met))
    for operation in (*OPERATIONS, CONTROL):
        of = "a bare RPUSH (control)" if operation == CONTROL else operation
        shown, _ = _growth(results, f"{operation}_cpu")
        made.append(Bar(f"{of}, server CPU: {LARGE} over {SMALL}", "reported", shown, None))
    for key, what, unit in (
        ("bytes", "server memory per message", "bytes"),
        ("over_bare", "the same over bare lists with the same keys", ""),
        ("first_ms", "a fresh worker finds the one user who is due", "ms"),
    ):
        known = results.values(LARGE, key)
        reached = f"{number(results.median(LARGE, key), 2)} {unit}".strip() if known else ""
        made.append(Bar(f"{what}, {LARGE}", "reported", reached, None))
    return made


def _growth(results: Results, key: str) -> tuple[str, float]:
    ratio = results.ratio(LARGE, key, SMALL)
    return f"{ratio:.2f}" if results.ratios(LARGE, key, SMALL) else "", ratio


def _metrics() -> Iterable[Metric]:
    for operation in OPERATIONS:
        yield Metric(f"{operation}_us", f"{operation},\nserver", "µs", 1, higher_is_better=False)
    yield Metric(f"{CONTROL}_us", "bare RPUSH,\nserver", "µs", 2, higher_is_better=False)
    for operation in OPERATIONS:
        yield Metric(f"{operation}_wall", f"{operation},\nwall", "µs", 1, higher_is_better=False)
    yield Metric("bytes", "server memory\nper message", "bytes", 0, higher_is_better=False)
    yield Metric("bare_bytes", "bare list", "bytes", 0, higher_is_better=False)
    yield Metric("first_ms", "fresh worker\nto first due", "ms", 1, higher_is_better=False)
    yield Metric("filled_per_s", "users filled", "per s", 0)


SCENARIO = Scenario(
    name="growth",
    title="one more user among 1 000, 100 000 and 1 000 000 with 5 messages each",
    how=(
        "On top of so many users, 10 times 500 new ones: five appends, take, acknowledge, by 200 callers in one "
        "process. Server time is per EVALSHA, from INFO commandstats; wall time is per operation. Memory is "
        "used_memory per message of about 60 bytes, beside plain lists with the same payloads, keys and EXPIRE; RPUSH "
        "on those is the control for what the server and the caches do by themselves. A fresh worker is timed from "
        "`work()` to the handler's first line, with one user due. (--quick: a fiftieth of the users.)"
    ),
    metrics=tuple(_metrics()),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("append_us", "take_us", "ack_us", "bytes"),
    rounds=3,
)
