"""Is this state worth telling: one thing at a time by 100 callers, and a hundred at once by one and ten."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable

from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from .gate_worker import AT_ONCE
from .phases import ratio_bar, redis_py, run

HOLDFAST, SET_GET = "Holdfast gate", "redis-py, SET GET of a digest"
PHASES = {"check": ("check:100", 1), "many_1": ("many:1", AT_ONCE), "many_10": ("many:10", AT_ONCE)}
WHAT = {
    "check": "checks/s, 100 callers",
    "many_1": "states/s, check_many, 1 caller",
    "many_10": "states/s, check_many, 10 callers",
}


def contestants() -> Iterable[Contestant]:
    yield Contestant(HOLDFAST, "holdfast", importlib.metadata.version("holdfast"), ours=True)
    yield Contestant(SET_GET, "set-get", redis_py())


def turn(who: Contestant, now: Turn) -> Figures:
    command = [sys.executable, "-m", "bench.once.gate_worker", who.lib]
    figures: Figures = {}
    results = run(now, command, [phase for phase, _ in PHASES.values()])
    for (key, (_, each)), done in zip(PHASES.items(), results, strict=True):
        done.must_answer(1, f"right answers, {key}")
        figures |= {key: done.per_second(each), f"{key}_us": done.server_us(each)}
        if done.times:
            figures[f"{key}_p50"] = done.p50
    return figures


def bars(results: Results) -> list[Bar]:
    made = [ratio_bar(results, HOLDFAST, key, SET_GET, f"{what},") for key, what in WHAT.items()]
    return [*made, ratio_bar(results, HOLDFAST, "many_10_us", SET_GET, "server CPU for a state, check_many,")]


SCENARIO = Scenario(
    name="gate",
    title="is this state worth telling: 10 000 known things, 1 % of the states changed",
    how=(
        "States of about 110 bytes of JSON. Holdfast: `gate.check(key, state)` by 100 callers of one asyncio process, "
        "and `gate.check_many` of 100; one script that judges by the window of 300 s, stores the state, answers the "
        "one before, and notes what must be made up for at the window's end. redis-py, for scale: `SET key digest EX "
        "GET` of a digest of the state, awaited, and 100 in one pipeline; it knows the last state only, so what flaps "
        "is told each time. Every answer is compared with what it must be."
    ),
    metrics=(
        Metric("check", "checks,\n100 callers", "per s", 0),
        Metric("many_1", "states,\ncheck_many,\n1 caller", "per s", 0),
        Metric("many_10", "states,\ncheck_many,\n10 callers", "per s", 0),
        Metric("check_us", "server CPU\nper check", "µs", 1, higher_is_better=False),
        Metric("many_10_us", "server CPU\nper state,\ncheck_many", "µs", 2, higher_is_better=False),
        Metric("many_1_p50", "one call of\ncheck_many, p50", "µs", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("check", SET_GET),
    plots=("check", "many_1", "many_10"),
    rounds=3,
    seconds=0.8,
)
