"""8 processes, one name, no hold: what handing over costs when there is nothing else to do."""

from __future__ import annotations

from collections.abc import Iterable

from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from . import contention
from .contestants import HOLDFAST_ASYNC, HOLDFAST_SYNC, REDIS_PY_ASYNC, REDIS_PY_SYNC, contestant

PROCESSES = 8
LIBS = (
    *("holdfast-async", "holdfast-sync", "holdfast-barging", "redis-py-async", "redis-py-1ms", "redis-py-sync"),
    *("python-redis-lock", "pottery", "rueidislock", "redsync", "redisson", "redisson-fair"),
)


def contestants() -> Iterable[Contestant]:
    return [contestant(lib) for lib in LIBS]


def turn(who: Contestant, now: Turn) -> Figures:
    return contention.contend(who, now, PROCESSES, 0)


def bars(results: Results) -> list[Bar]:
    made = []
    for ours, theirs in ((HOLDFAST_ASYNC, REDIS_PY_ASYNC), (HOLDFAST_SYNC, REDIS_PY_SYNC)):
        ratios = results.ratios(ours, "rate", theirs)
        ratio = results.ratio(ours, "rate", theirs)
        what = f"{ours} (fair): acquisitions over {theirs} (barging)"
        made.append(Bar(what, "> 1", f"{ratio:.3f}" if ratios else "", ratio > 1 if ratios else None))
    return made


SCENARIO = Scenario(
    name="nohold",
    title="8 processes, one name, no hold",
    how=(
        "Barging locks are fast here because the process that releases takes the lock again before anyone else wakes: "
        "see the least of a process and the longest wait. Stuck: waits that had not ended 3 s after "
        "everybody had stopped."
    ),
    metrics=(
        Metric("rate", "acquired", "per s", digits=0),
        Metric("share_min", "least of\na process", digits=0),
        Metric("share_max", "most of\na process", digits=0, higher_is_better=False),
        Metric("wait_p99", "wait p99", "ms", digits=2, higher_is_better=False),
        Metric("wait_max", "wait max", "ms", digits=0, higher_is_better=False),
        Metric("overlaps", "over-\nlaps", digits=0, higher_is_better=False),
        Metric("stuck", "stuck", digits=0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("rate", REDIS_PY_ASYNC),
    plots=("rate", "share_min", "wait_max"),
    rounds=3,
    seconds=5.0,
    log_scale=frozenset({"wait_max"}),
)
