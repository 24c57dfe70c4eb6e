"""What it costs a process to tell the fleet what it does: locks and appends with reports every 5 s, and without."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterable

from holdfast import sync

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn

WITH, WITHOUT = "report=5", "report=0"
KINDS = {"lock": "lock cycles", "append": "appends"}
COUNTED = {"lock": "granted", "append": "appended"}
FLAT = 0.95
LIMIT = 30.0


def contestants() -> Iterable[Contestant]:
    version = importlib.metadata.version("holdfast")
    for name in (WITH, WITHOUT):
        yield Contestant(name, name.partition("=")[2], version, ours=True)


def turn(who: Contestant, now: Turn) -> Figures:
    # Who comes first alternates: a process is slower in its first second than later.
    kinds = list(KINDS) if now.round % 2 else list(reversed(KINDS))
    command = [sys.executable, "-m", "bench.node.report_worker", who.lib, now.server.addr, str(now.seconds), *kinds]
    figures: Figures = {}
    with fleet.started([command]) as (worker,), fleet.limited([worker], LIMIT, "working"):
        for kind in kinds:
            if kind != kinds[0] and (said := worker.line()) != "ready":
                raise fleet.WorkerFailed(f"expected 'ready', got {said[:200]!r}")
            cpu = now.server.cpu_seconds()
            worker.say_go()
            did = json.loads(worker.line())
            figures |= {
                kind: did["done"] / did["took"],
                f"{kind}_cpu": did["cpu"] / did["done"] * 1e6,
                f"{kind}_us": (now.server.cpu_seconds() - cpu) / did["done"] * 1e6,
            }
    figures["told"] = _told(now, COUNTED[kinds[0]])
    if (figures["told"] > 0) != (who.name == WITH):
        raise fleet.WorkerFailed(f"{who.name}, but the fleet was told of {figures['told']:.0f}")
    return figures


def _told(now: Turn, counter: str) -> float:
    """What the fleet knows of it: the process was ended without a goodbye, so these are regular reports."""
    with sync.Holdfast(f"redis://{now.server.addr}", report=0) as hf:
        return float(hf.fleet.totals().get(counter, 0))


def bars(results: Results) -> list[Bar]:
    made = []
    for kind, what in KINDS.items():
        shown, ratio = _ratio(results, kind)
        met = ratio >= FLAT if shown else None
        made.append(Bar(f"{what} per second, {WITH} over {WITHOUT}: median and spread", f"≥ {FLAT}", shown, met))
        for key, of in ((f"{kind}_cpu", "the process's own CPU"), (f"{kind}_us", "server CPU")):
            shown, _ = _ratio(results, key)
            made.append(Bar(f"{what}, {of} for one, {WITH} over {WITHOUT}", "reported", shown, None))
    return made


def _ratio(results: Results, key: str) -> tuple[str, float]:
    ratio, ratios = results.ratio(WITH, key, WITHOUT), results.ratios(WITH, key, WITHOUT)
    return f"{ratio:.3f} ({min(ratios):.3f} .. {max(ratios):.3f})" if ratios else "", ratio


SCENARIO = Scenario(
    name="report",
    title="one asyncio process, 50 callers: with reports to the fleet, and without",
    how=(
        "Locks: acquire and release, each caller on a name of its own; `buffer.append`, each caller for a user of its "
        "own, in a buffer that drops nothing. With report=5, the default, the client counts each grant, release and "
        "append, and how long they took; it tells the fleet half a second after it was opened and then every five. "
        "The two take turns; a ratio is taken inside a round. `told`: what of the first kind of work the fleet was "
        "told in regular reports, which must be something with report=5 and nothing with report=0."
    ),
    metrics=(
        Metric("lock", "acquire and\nrelease", "per s", 0),
        Metric("append", "append", "per s", 0),
        Metric("lock_cpu", "own CPU\nper cycle", "µs", 1, higher_is_better=False),
        Metric("append_cpu", "own CPU\nper append", "µs", 1, higher_is_better=False),
        Metric("lock_us", "server CPU\nper cycle", "µs", 1, higher_is_better=False),
        Metric("append_us", "server CPU\nper append", "µs", 1, higher_is_better=False),
        Metric("told", "told", "", 0),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("lock", WITHOUT),
    plots=("lock", "append"),
    rounds=7,
    seconds=1.2,
)
