"""What it costs a process to tell the fleet what it does: locks and appends with reports every 5 s, and without."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterable

from holdfast import sync

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..stats import median

KINDS = {"lock cycles": "lock", "appends": "append"}
COUNTED = {"lock": "granted", "append": "appended"}
WAYS = {"with": "5", "without": "0"}
SLICES, QUICK_SLICES = 6, 4
SLICE = 0.2
FLAT = 0.95
LIMIT = 30.0


def contestants() -> Iterable[Contestant]:
    version = importlib.metadata.version("holdfast")
    return [Contestant(name, kind, version, ours=True) for name, kind in KINDS.items()]


def turn(who: Contestant, now: Turn) -> Figures:
    """Both processes are there all the time, and one at a time works."""
    module, rest = [sys.executable, "-m", "bench.node.report_worker"], [now.server.addr, str(SLICE), who.lib]
    slices: dict[str, list[Figures]] = {way: [] for way in WAYS}
    with fleet.started([[*module, report, *rest] for report in WAYS.values()]) as workers:
        pair = dict(zip(WAYS, workers, strict=True))
        with fleet.limited(workers, LIMIT, "working"):
            for number in range(QUICK_SLICES if now.quick else SLICES):
                # A B, B A, …: whatever gets faster or slower meanwhile does so for both.
                for way in WAYS if number % 2 else reversed(WAYS):
                    slices[way].append(_slice(now, pair[way]))
    figures = {f"{key}_{way}": median([one[key] for one in slices[way]]) for way in WAYS for key in slices[way][0]}
    for key in slices["with"][0]:
        figures[f"{key}_ratio"] = median(
            [ours[key] / theirs[key] for ours, theirs in zip(slices["with"], slices["without"], strict=True)]
        )
    return figures | {"told": _told(now, who.lib, sum(one["done"] for one in slices["with"]))}


def _slice(now: Turn, worker: fleet.Worker) -> Figures:
    cpu = now.server.cpu_seconds()
    worker.say_go()
    did = json.loads(worker.line())
    spent = now.server.cpu_seconds() - cpu
    return {
        "done": did["done"],
        "rate": did["done"] / did["took"],
        "cpu": did["cpu"] / did["done"] * 1e6,
        "server": spent / did["done"] * 1e6,
    }


def _told(now: Turn, kind: str, done: float) -> float:
    """The share of it that the fleet knows of. The processes ended without a goodbye: these are regular reports."""
    with sync.Holdfast(f"redis://{now.server.addr}", report=0) as hf:
        told = hf.fleet.totals().get(COUNTED[kind], 0)
    if not told:
        raise fleet.WorkerFailed("the fleet was told nothing of what the process did that reports")
    return told / done * 100


def bars(results: Results) -> list[Bar]:
    made = []
    for name in KINDS:
        for key, what in (("rate", "per second"), ("cpu", "the process's own CPU"), ("server", "server CPU")):
            found = results.values(name, f"{key}_ratio")
            ratio = median(found)
            reached = f"{ratio:.3f} ({min(found):.3f} .. {max(found):.3f})" if found else ""
            met = ratio >= FLAT if found and key == "rate" else None
            target = f"≥ {FLAT}" if key == "rate" else "reported"
            made.append(Bar(f"{name}, {what}: with reports over without, median and spread", target, reached, met))
    return made


SCENARIO = Scenario(
    name="report",
    title="one asyncio process, 50 callers: with reports to the fleet, and without",
    how=(
        "Locks: acquire and release, each caller on a name of its own. Appends: each caller for a user of its own, in "
        "a buffer that drops nothing. With reports (report=5, the default) the client counts each grant, release and "
        "append, and how long they took; it tells the fleet half a second after it was opened and then every five. "
        f"Without: report=0. Both processes are there, and work in turns, {SLICES} times {SLICE} s each in a round; a "
        "ratio is taken between two slices that follow each other, and a round's is the middle of them. `told`: the "
        "share of the work that the fleet had been told of when the process was ended, which must not be nothing."
    ),
    metrics=(
        Metric("rate_with", "with\nreports", "per s", 0),
        Metric("rate_without", "without", "per s", 0),
        Metric("rate_ratio", "with over\nwithout", "", 3),
        Metric("cpu_with", "own CPU,\nwith", "µs", 1, higher_is_better=False),
        Metric("cpu_without", "own CPU,\nwithout", "µs", 1, higher_is_better=False),
        Metric("server_with", "server CPU,\nwith", "µs", 1, higher_is_better=False),
        Metric("server_without", "server CPU,\nwithout", "µs", 1, higher_is_better=False),
        Metric("told", "told", "%", 0),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("rate_with", "rate_without", "rate_ratio"),
    rounds=7,
    seconds=SLICES * SLICE * 2,
)
