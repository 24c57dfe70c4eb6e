"""From `stop` in one process to the `CancelledError` in a handler that waits in another."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterable

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..stats import percentile

TIMES, QUICK = 250, 40
LIMIT = 120.0
HOLDFAST = "Holdfast"
P50, P99 = 10.0, 100.0


def contestants() -> Iterable[Contestant]:
    yield Contestant(HOLDFAST, "holdfast", importlib.metadata.version("holdfast"), ours=True)


def turn(who: Contestant, now: Turn) -> Figures:
    times = QUICK if now.quick else TIMES
    module = [sys.executable, "-m", "bench.runs.stop_worker"]
    commands = [[*module, "work", now.server.addr], [*module, "stop", now.server.addr, str(times)]]
    with fleet.started(commands) as (worker, stopper), fleet.limited([worker, stopper], LIMIT, "stopping all runs"):
        stopper.say_go()
        stopped = json.loads(stopper.line())
        worker.say_go()
        cancelled = json.loads(worker.line())["cancelled"]
    if missing := stopped["called"].keys() - cancelled.keys():
        raise fleet.WorkerFailed(f"{len(missing)} of {times} handlers were not cancelled")
    delays = [(cancelled[name] - called) / 1e6 for name, called in stopped["called"].items()]
    return {
        "p50": percentile(delays, 50),
        "p99": percentile(delays, 99),
        "worst": max(delays),
        "call_p50": percentile(stopped["returned"], 50) / 1e6,
        "times": float(len(delays)),
    }


def bars(results: Results) -> list[Bar]:
    known = results.values(HOLDFAST, "p50")
    middle, late = results.median(HOLDFAST, "p50"), max(results.values(HOLDFAST, "p99"), default=float("nan"))
    what = f"{HOLDFAST}: from stop to CancelledError"
    return [
        Bar(f"{what}, p50", f"< {P50:.0f} ms", f"{middle:.2f} ms" if known else "", middle < P50 if known else None),
        Bar(
            f"{what}, p99, worst round",
            f"< {P99:.0f} ms",
            f"{late:.2f} ms" if known else "",
            late < P99 if known else None,
        ),
    ]


SCENARIO = Scenario(
    name="stop",
    title="from `await agent.stop(...)` in one process to the handler's CancelledError in another",
    how=(
        "250 runs a round, one after another: each is started, runs for at least 20 ms, and is stopped. Timed from "
        "just before the call to the handler's `except`, on the machine's monotonic clock. (--quick: 40 runs.)"
    ),
    metrics=(
        Metric("p50", "p50", "ms", 2, higher_is_better=False),
        Metric("p99", "p99", "ms", 2, higher_is_better=False),
        Metric("worst", "worst", "ms", 2, higher_is_better=False),
        Metric("call_p50", "the call itself,\np50", "ms", 2, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("p50", "p99"),
    rounds=3,
)
