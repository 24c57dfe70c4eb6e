"""One caller: how long acquire and release take together."""

from __future__ import annotations

from collections.abc import Iterable

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..stats import percentile
from . import contestants as who_is
from .contestants import HOLDFAST_ASYNC, HOLDFAST_SYNC, REDIS_PY_ASYNC, REDIS_PY_SYNC

LIBS = ("holdfast-async", "redis-py-async", "holdfast-sync", "redis-py-sync", "python-redis-lock", "pottery", "ping")


def contestants() -> Iterable[Contestant]:
    return [who_is.contestant(lib) for lib in LIBS]


def turn(who: Contestant, now: Turn) -> Figures:
    command = who_is.command(who, now.server.addr, "latency", now.seconds, 0)
    (rows,) = fleet.run([command], now.seconds).rows
    pairs = [(row[3] - row[0]) / 1e3 for row in rows]
    return {
        "p50": percentile(pairs, 50),
        "p99": percentile(pairs, 99),
        "acquire_p50": percentile([(row[1] - row[0]) / 1e3 for row in rows], 50),
        "release_p50": percentile([(row[3] - row[2]) / 1e3 for row in rows], 50),
        "pairs": float(len(rows)),
    }


def bars(results: Results) -> list[Bar]:
    made = []
    for ours, theirs in ((HOLDFAST_ASYNC, REDIS_PY_ASYNC), (HOLDFAST_SYNC, REDIS_PY_SYNC)):
        for key in ("p50", "p99"):
            ratios = results.ratios(ours, key, theirs)
            ratio = results.ratio(ours, key, theirs)
            what = f"{ours}: {key} over {theirs}'s"
            made.append(Bar(what, "≤ 1.00", f"{ratio:.2f}" if ratios else "", ratio <= 1 if ratios else None))
    return made


SCENARIO = Scenario(
    name="latency",
    title="one caller, acquire and release",
    how="A process of its own per turn, one name that nobody else wants. The PING row is one round trip, for scale.",
    metrics=(
        Metric("p50", "pair p50", "µs", digits=0, higher_is_better=False),
        Metric("p99", "pair p99", "µs", digits=0, higher_is_better=False),
        Metric("acquire_p50", "acquire p50", "µs", digits=0, higher_is_better=False),
        Metric("release_p50", "release p50", "µs", digits=0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("p50", REDIS_PY_ASYNC),
    plots=("p50", "p99"),
    rounds=5,
    seconds=2.0,
)
