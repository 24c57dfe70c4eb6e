"""What it costs a process to tell the fleet what it does: locks and appends with reports every 5 s, and without."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable

from holdfast import sync

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..once.phases import run

CALLERS = 50
WITH, WITHOUT = "report=5", "report=0"
PHASES = {"lock": "lock cycles", "append": "appends"}
COUNTED = {"lock": "granted", "append": "appended"}
FLAT = 0.95


def contestants() -> Iterable[Contestant]:
    version = importlib.metadata.version("holdfast")
    for name in (WITH, WITHOUT):
        yield Contestant(name, name.partition("=")[2], version, ours=True)


def turn(who: Contestant, now: Turn) -> Figures:
    command = [sys.executable, "-m", "bench.node.report_worker", who.lib]
    # Who comes first alternates: a process is slower in its first second than later.
    phases = list(PHASES) if now.round % 2 else list(reversed(PHASES))
    figures: Figures = {}
    for key, done in zip(phases, run(now, command, [f"{key}:{CALLERS}" for key in phases]), strict=True):
        done.must_answer(1, f"right answers, {key}")
        figures |= {key: done.per_second(), f"{key}_us": done.server_us()}
    figures["told"] = _told(now, COUNTED[phases[0]])
    if (figures["told"] > 0) != (who.lib != "0"):
        raise fleet.WorkerFailed(f"{who.name}, but the fleet was told of {figures['told']:.0f}")
    return figures


def _told(now: Turn, counter: str) -> float:
    """What the fleet knows of it: the process was ended without a goodbye, so these are regular reports."""
    with sync.Holdfast(f"redis://{now.server.addr}", report=0) as hf:
        return float(hf.fleet.totals().get(counter, 0))


def bars(results: Results) -> list[Bar]:
    made = []
    for key, what in PHASES.items():
        ratios = sorted(results.ratios(WITH, key, WITHOUT))
        reached = f"{results.ratio(WITH, key, WITHOUT):.3f} ({ratios[0]:.3f} .. {ratios[-1]:.3f})" if ratios else ""
        met = results.ratio(WITH, key, WITHOUT) >= FLAT if ratios else None
        made.append(Bar(f"{what} per second, {WITH} over {WITHOUT}: median and spread", f"≥ {FLAT}", reached, met))
        ratios = results.ratios(WITH, f"{key}_us", WITHOUT)
        reached = f"{results.ratio(WITH, f'{key}_us', WITHOUT):.3f}" if ratios else ""
        made.append(Bar(f"{what}, server CPU, {WITH} over {WITHOUT}", "reported", reached, None))
    return made


SCENARIO = Scenario(
    name="report",
    title="one asyncio process, 50 callers: with reports to the fleet, and without",
    how=(
        "`async with hf.lock(name)` in two calls, each caller on a name of its own; `buffer.append`, each caller for "
        "a user of its own, in a buffer that drops nothing. With report=5, the default, the client counts each "
        "grant, release and append, and how long they took; it tells the fleet half a second after it was opened and "
        "then every five. The two take turns; a ratio is taken inside a round. `told`: what the fleet knew at the end "
        "of the first kind of work, which must be nothing with report=0."
    ),
    metrics=(
        Metric("lock", "acquire and\nrelease", "per s", 0),
        Metric("append", "append", "per s", 0),
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
