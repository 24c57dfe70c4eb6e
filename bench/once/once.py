"""Is this id new: 100 callers in one asyncio process; and how long one caller waits, awaiting and blocking."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable

from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from .phases import ratio_bar, redis_py, run

CALLERS = 100
HOLDFAST, REDIS_PY = "Holdfast once", "redis-py, SET NX"


def contestants() -> Iterable[Contestant]:
    yield Contestant(HOLDFAST, "holdfast", importlib.metadata.version("holdfast"), ours=True)
    yield Contestant(REDIS_PY, "redis-py", redis_py())


def turn(who: Contestant, now: Turn) -> Figures:
    command = [sys.executable, "-m", "bench.once.once_worker"]
    many, alone = run(now, [*command, who.lib], [f"once:{CALLERS}", "once:1"])
    (blocking,) = run(now, [*command, f"{who.lib}-sync"], ["once:1"])
    for done in (many, alone, blocking):
        done.must_answer(1, "new ids")
    return {
        "ids": many.per_second(),
        "server_us": many.server_us(),
        "p50": alone.p50,
        "p99": alone.p99,
        "p50_sync": blocking.p50,
        "p99_sync": blocking.p99,
    }


def bars(results: Results) -> list[Bar]:
    return [
        ratio_bar(results, HOLDFAST, "ids", REDIS_PY, f"ids/s, {CALLERS} callers,", least=1),
        ratio_bar(results, HOLDFAST, "p50", REDIS_PY, "one caller's p50, awaiting,"),
        ratio_bar(results, HOLDFAST, "p50_sync", REDIS_PY, "one caller's p50, blocking,"),
        ratio_bar(results, HOLDFAST, "p99", REDIS_PY, "one caller's p99, awaiting,"),
        ratio_bar(results, HOLDFAST, "p99_sync", REDIS_PY, "one caller's p99, blocking,"),
        ratio_bar(results, HOLDFAST, "server_us", REDIS_PY, f"server CPU, {CALLERS} callers,"),
    ]


SCENARIO = Scenario(
    name="once",
    title="is this id new: one asyncio process, 100 callers; one caller, awaiting and blocking",
    how=(
        "Every id is new, seen for 300 s. Holdfast: `await hf.once(space, id, 300)`, and the same of holdfast.sync in "
        "a process of its own. redis-py: `await client.set(key, 1, nx=True, ex=300)` with its pool, and its blocking "
        "client. A repeat of Holdfast's after a lost reply finds its own mark, and a cancelled one is taken back; "
        "redis-py's answers that the id is known. Every call's answer is counted."
    ),
    metrics=(
        Metric("ids", "ids,\n100 callers", "per s", 0),
        Metric("server_us", "server CPU\nper id", "µs", 1, higher_is_better=False),
        Metric("p50", "one caller,\nawaiting, p50", "µs", 0, higher_is_better=False),
        Metric("p99", "one caller,\nawaiting, p99", "µs", 0, higher_is_better=False),
        Metric("p50_sync", "one caller,\nblocking, p50", "µs", 0, higher_is_better=False),
        Metric("p99_sync", "one caller,\nblocking, p99", "µs", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("ids", REDIS_PY),
    plots=("ids", "p50", "p50_sync"),
    rounds=5,
    seconds=0.8,
)
