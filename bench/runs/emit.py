"""Events of 100 bytes, emitted by one run and by 100 runs at once in one process, beside bare XADD."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..wiretap import WireTap

RUNS = (1, 100)
COUNTED_SECONDS = 1.0
LIMIT = 60.0
HOLDFAST, NOW, XADD = "Holdfast emit", "Holdfast emit, emit_delay 0", "redis-py, XADD awaited"


def contestants() -> Iterable[Contestant]:
    ours = importlib.metadata.version("holdfast")
    redis_py = f"redis {importlib.metadata.version('redis')}, hiredis {importlib.metadata.version('hiredis')}"
    yield Contestant(HOLDFAST, "holdfast", ours, ours=True)
    yield Contestant(NOW, "holdfast-now", ours, ours=True)
    yield Contestant(XADD, "xadd", redis_py)


def turn(who: Contestant, now: Turn) -> Figures:
    figures: Figures = {}
    for runs in RUNS:
        now.server.reset()
        report, cpu = _run(who, now.server.addr, now.seconds, runs, now.server.cpu_seconds)
        done = report["done"]
        now.server.reset()
        figures |= {
            f"events_{runs}": done / report["took"],
            f"server_us_{runs}": cpu / done * 1e6,
            f"commands_{runs}": _commands(who, now, runs),
            f"least_{runs}": float(report["least"]),
        }
    return figures


def _run(
    who: Contestant, addr: str, seconds: float, runs: int, look: Callable[[], float]
) -> tuple[dict[str, Any], float]:  # fmt: skip
    """What the process reports, and by how much the counter that `look` reads has grown until then."""
    command = [sys.executable, "-m", "bench.runs.emit_worker", who.lib, addr, str(seconds), str(runs)]
    with fleet.started([command]) as (worker,), fleet.limited([worker], seconds + LIMIT, "emitting"):
        before = look()
        worker.say_go()
        report, grown = json.loads(worker.line()), look() - before
        if missing := json.loads(worker.line())["missing"]:
            raise fleet.WorkerFailed(f"the server has {missing} events less than were emitted")
        return report, grown


def _commands(who: Contestant, now: Turn, runs: int) -> float:
    """Commands on the wire for one event, in a run of its own, because the relay costs time."""
    with WireTap(now.server.port) as tap:
        report, commands = _run(who, tap.addr, COUNTED_SECONDS, runs, lambda: float(tap.commands))
    return commands / float(report["done"])


def bars(results: Results) -> list[Bar]:
    made = []
    for ours in (HOLDFAST, NOW):
        for runs in RUNS:
            for key, what in (("events", "events/s"), ("server_us", "server CPU"), ("commands", "commands")):
                known = results.ratios(ours, f"{key}_{runs}", XADD)
                shown = f"{results.ratio(ours, f'{key}_{runs}', XADD):.3g}" if known else ""
                made.append(Bar(f"{ours}, {_of(runs)}: {what} over {XADD}", "reported", shown, None))
    return made


def _of(runs: int) -> str:
    return f"{runs} run" + ("s" if runs > 1 else "")


def _metrics() -> Iterable[Metric]:
    for runs in RUNS:
        yield Metric(f"events_{runs}", f"events,\n{_of(runs)}", "per s", 0)
        yield Metric(f"server_us_{runs}", f"server CPU\nper event, {_of(runs)}", "µs", 2, higher_is_better=False)
        yield Metric(f"commands_{runs}", f"commands\nper event, {_of(runs)}", "", 4, higher_is_better=False)


SCENARIO = Scenario(
    name="emit",
    title="one asyncio process, events of 100 bytes, from one run and from 100 runs at once",
    how=(
        "Each run, or stream, has one emitter that awaits each event before the next. Holdfast: `await "
        "run.emit(data)`, which gathers the events of a fast emitter and sends them together, bounded to 10 000 "
        "events a run (the oldest go), fenced, and stored once although a reply is lost; the clock stops when all are "
        "flushed. redis-py: one XADD at a time to a stream of its own, stored when it returns, without bound, expiry "
        "or fence. What the server has stored is counted afterwards. Commands are counted on the wire, in a second "
        "run of its own: the relay there makes every answer slower."
    ),
    metrics=tuple(_metrics()),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("events_1", XADD),
    plots=("events_1", "events_100"),
    rounds=5,
    seconds=3.0,
)
