"""A function that does nothing, called once for each key: 100 callers, and one; new keys, and one with a result."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable

from .. import peers
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from .phases import ratio_bar, run

CALLERS = 100
HOLDFAST, SYNC, POWERTOOLS = "Holdfast", "Holdfast sync", "AWS Lambda Powertools"
PHASES = {"fresh": f"fresh:{CALLERS}", "stored": f"stored:{CALLERS}", "fresh_one": "fresh:1", "stored_one": "stored:1"}
PACKAGES = ("aws-lambda-powertools", "redis", "hiredis")


def contestants() -> Iterable[Contestant]:
    ours = importlib.metadata.version("holdfast")
    yield Contestant(HOLDFAST, "asyncio", ours, ours=True)
    yield Contestant(SYNC, "threads", ours, ours=True)
    env = peers.environment("powertools")
    yield Contestant(POWERTOOLS, "powertools", env.version(*PACKAGES), env.reason)


def turn(who: Contestant, now: Turn) -> Figures:
    if who.ours:
        command = [sys.executable, "-m", "bench.once.idempotent_worker", who.lib]
    else:
        command = [peers.environment(who.lib).python, "-m", "bench.peers.python.powertools_peer"]
    figures: Figures = {}
    for key, done in zip(PHASES, run(now, command, list(PHASES.values())), strict=True):
        done.must_answer(1, f"right results, {key}")
        if done.times:
            figures |= {f"{key}_p50": done.p50, f"{key}_p99": done.p99}
        else:
            figures |= {key: done.per_second(), f"{key}_us": done.server_us()}
    return figures


def bars(results: Results) -> list[Bar]:
    made = []
    for ours in (HOLDFAST, SYNC):
        for key, what in (("fresh", "calls/s, new keys,"), ("stored", "calls/s, stored result,")):
            made.append(ratio_bar(results, ours, key, POWERTOOLS, what, least=1))
    for key, what in (("fresh_one_p50", "new keys,"), ("stored_one_p50", "stored result,")):
        made.append(ratio_bar(results, SYNC, key, POWERTOOLS, f"one blocking caller's p50, {what}"))
    return made


SCENARIO = Scenario(
    name="idempotent",
    title="a function that does nothing, once for each key: 100 callers in one process, and one caller",
    how=(
        "Results of 35 bytes, kept for an hour. Holdfast: `@hf.idempotent(key=...)`, 100 callers in one event loop; "
        "that of holdfast.sync, 100 threads. AWS Lambda Powertools: `@idempotent_function` with CachePersistenceLayer "
        "on redis-py and hiredis; it blocks, so it gets 100 threads too. A single caller is one task, or one thread. A "
        "new key is two round trips for both, a stored result one for Holdfast and three for Powertools (SET NX, GET, "
        "GET). "
        "Holdfast's claim is renewed while the call runs, confirmed by its owner only, and another's arguments for the "
        "same key are refused; Powertools' in-progress record has a fixed life, its result is written whoever holds it "
        "by then, and arguments are not compared (its default). Who comes meanwhile waits with Holdfast, and gets an "
        "error with Powertools. Every result is compared."
    ),
    metrics=(
        Metric("fresh", "calls,\nnew keys", "per s", 0),
        Metric("stored", "calls,\nstored result", "per s", 0),
        Metric("fresh_us", "server CPU\nper call,\nnew keys", "µs", 1, higher_is_better=False),
        Metric("stored_us", "server CPU\nper call,\nstored", "µs", 1, higher_is_better=False),
        Metric("fresh_one_p50", "one caller,\nnew keys, p50", "µs", 0, higher_is_better=False),
        Metric("stored_one_p50", "one caller,\nstored, p50", "µs", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("fresh", POWERTOOLS),
    plots=("fresh", "stored", "fresh_one_p50"),
    rounds=5,
    seconds=0.8,
)
