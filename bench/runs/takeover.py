"""A worker is killed while it has a resumable run: how long until the handler starts in another process."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterable

from holdfast.sync import Holdfast

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..stats import median
from .takeover_worker import RUNS

LEASE, GRACE = 2.0, 1.0
TIMES, QUICK = 5, 2
LIMIT = 60.0
SETTLE = 0.5
HOLDFAST = "Holdfast"


def contestants() -> Iterable[Contestant]:
    yield Contestant(HOLDFAST, "holdfast", importlib.metadata.version("holdfast"), ours=True)


def turn(who: Contestant, now: Turn) -> Figures:
    times = QUICK if now.quick else TIMES
    command = [sys.executable, "-m", "bench.runs.takeover_worker", now.server.addr, str(LEASE)]
    taken: list[float] = []
    with Holdfast(f"redis://{now.server.addr}") as hf, contextlib.ExitStack() as stack:
        agent = hf.runs(RUNS, lease=LEASE)
        (owner,) = stack.enter_context(fleet.started([command]))
        for number in range(times):
            name = f"run-{number}"
            with fleet.limited([owner], LIMIT, "starting the run"):
                agent.start(name)
                _started(owner, name, attempt=1)
            (standby,) = stack.enter_context(fleet.started([command]))
            # The kill comes at another point of the time between two renewals in each sample.
            time.sleep(SETTLE + LEASE * number / times)
            with fleet.limited([standby], LIMIT, "taking the run over"):
                killed = time.monotonic_ns()
                owner.process.kill()
                taken.append((_started(standby, name, attempt=2) - killed) / 1e9)
            agent.wait(name, timeout=LIMIT)
            owner = standby
    return {"middle": median(taken), "least": min(taken), "worst": max(taken), "times": float(times)}


def _started(worker: fleet.Worker, name: str, attempt: int) -> int:
    """When the worker's handler started, which must be with this run."""
    report = json.loads(worker.line())
    if (report["run"], report["attempt"]) != (name, attempt):
        raise fleet.WorkerFailed(f"expected {name}, attempt {attempt}, got {report}")
    return int(report["at"])


def bars(results: Results) -> list[Bar]:
    values = results.values(HOLDFAST, "worst")
    worst = max(values, default=float("nan"))
    what = f"{HOLDFAST}: from the kill to the handler elsewhere, worst of all"
    most = LEASE + GRACE
    shown = f"{worst:.2f} s" if values else ""
    return [Bar(what, f"≤ {most:.0f} s", shown, worst <= most if values else None)]


SCENARIO = Scenario(
    name="takeover",
    title="kill -9 of the worker that has a resumable run, lease 2 s, until the handler starts in another process",
    how=(
        "Five kills a round, each of a process that has the run for at least 0.5 s, with another one idle; the kills "
        "are spread over the time between two renewals. A lease that was just renewed has 2 s left, so that is what a "
        "takeover may take at most, plus what it takes to notice. (--quick: two kills a round.)"
    ),
    metrics=(
        Metric("middle", "median", "s", 2, higher_is_better=False),
        Metric("least", "least", "s", 2, higher_is_better=False),
        Metric("worst", "worst", "s", 2, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("middle", "worst"),
    rounds=2,
)
