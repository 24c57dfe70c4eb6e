"""One asyncio process, 100 callers, a user each: appends per second; and how long one caller waits."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterable
from typing import Any

from holdfast.sync import Holdfast

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..stats import percentile
from .append_worker import BUFFER, CAPACITY, DATA, PER_USER, TTL

CALLERS = 100
HOLDFAST, FOUR_CALLS, EVALSHA = "Holdfast append", "redis-py, a call per step", "redis-py, one EVALSHA"
RAW = "(raw pipelined load)"


def contestants() -> Iterable[Contestant]:
    redis_py = f"redis {importlib.metadata.version('redis')}, hiredis {importlib.metadata.version('hiredis')}"
    yield Contestant(HOLDFAST, "holdfast", importlib.metadata.version("holdfast"), ours=True)
    yield Contestant(FOUR_CALLS, "four-calls", redis_py)
    yield Contestant(EVALSHA, "evalsha", redis_py)
    yield Contestant(RAW, "raw")


def turn(who: Contestant, now: Turn) -> Figures:
    if who.lib == "raw":
        return _raw(now)
    fresh, cpu = _run(who, now, CALLERS, "fresh")
    if who.lib != "four-calls":
        _check_readable(now, "user:0:0")
    full, full_cpu = _run(who, now, CALLERS, "full")
    alone, _ = _run(who, now, 1, "fresh")
    times = [each / 1e3 for each in alone["times"]]
    return {
        "appends": fresh["done"] / fresh["took"],
        "server_us": cpu / fresh["done"] * 1e6,
        "full": full["done"] / full["took"],
        "full_server_us": full_cpu / full["done"] * 1e6,
        "p50": percentile(times, 50),
        "p99": percentile(times, 99),
    }


def _run(who: Contestant, now: Turn, callers: int, how: str) -> tuple[dict[str, Any], float]:
    now.server.reset()
    arguments = [who.lib, now.server.addr, str(now.seconds), str(callers), how]
    command = [sys.executable, "-m", "bench.buffers.append_worker", *arguments]
    before: list[float] = []
    outcome = fleet.run([command], now.seconds, ready=lambda: before.append(now.server.cpu_seconds()))
    return outcome.reports[0], now.server.cpu_seconds() - before[0]


def _raw(now: Turn) -> Figures:
    before = now.server.cpu_seconds()
    command = [sys.executable, "-m", "bench.buffers.append_load", now.server.addr, str(now.seconds)]
    answer = json.loads(fleet.output(command, now.seconds + 60))
    cpu = now.server.cpu_seconds() - before
    _check_readable(now, "raw:0:0")
    return {"appends": answer["done"] / answer["took"], "server_us": cpu / answer["done"] * 1e6}


def _check_readable(now: Turn, user: str) -> None:
    """A script takes wrong arguments without a word: a stale load would look like a valid one."""
    with Holdfast(f"redis://{now.server.addr}") as hf:
        found = [message.data for message in hf.buffer(BUFFER, capacity=CAPACITY, ttl=TTL).peek(user, CAPACITY)]
    if found != [DATA] * min(len(found), PER_USER) or not found:
        raise fleet.WorkerFailed(f"adjust append_load.Requests to the script: {user} has {len(found)} messages")


def bars(results: Results) -> list[Bar]:
    made = []
    for theirs, least in ((FOUR_CALLS, 8), (EVALSHA, 4)):
        known = results.ratios(HOLDFAST, "appends", theirs)
        ratio = results.ratio(HOLDFAST, "appends", theirs)
        what = f"{HOLDFAST}: per second over {theirs}"
        made.append(Bar(what, f"≥ {least}", f"{ratio:.2f}" if known else "", ratio >= least if known else None))
    known = results.ratios(HOLDFAST, "appends", RAW)
    part = results.ratio(HOLDFAST, "appends", RAW)
    made.append(Bar(f"{HOLDFAST}: part of {RAW}", "reported", f"{part:.2f}" if known else "", None))
    for key in ("p50", "p99"):
        known = results.ratios(HOLDFAST, key, EVALSHA)
        ratio = results.ratio(HOLDFAST, key, EVALSHA)
        what = f"{HOLDFAST}: one caller's {key} over {EVALSHA}"
        made.append(Bar(what, "reported", f"{ratio:.2f}" if known else "", None))
    return made


SCENARIO = Scenario(
    name="append",
    title="one asyncio process, 100 callers, small messages to users of their own",
    how=(
        "About 60 bytes of JSON, capacity 100, no absorber. Each caller goes on to a new user after 48 messages, so "
        "nothing is dropped and a call per step means three calls: RPUSH, EXPIRE, LLEN. `full`: every user's buffer "
        "is full, each append drops the oldest message, and LTRIM is a fourth call. EVALSHA is Holdfast's own script "
        "with ready-made arguments on redis-py's pool, without id, encoding, retry or checks. The raw load sends the "
        "same over 50 connections, 16 at a time, with nothing but a socket and hiredis. p50 and p99 are one caller's."
    ),
    metrics=(
        Metric("appends", "appends", "per s", 0),
        Metric("server_us", "server CPU\nper append", "µs", 1, higher_is_better=False),
        Metric("full", "appends, full", "per s", 0),
        Metric("full_server_us", "server CPU\nper append, full", "µs", 1, higher_is_better=False),
        Metric("p50", "one caller, p50", "µs", 0, higher_is_better=False),
        Metric("p99", "one caller, p99", "µs", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("appends", EVALSHA),
    plots=("appends", "full", "p50"),
    rounds=5,
    seconds=3.0,
)
