"""One asyncio process, 100 callers, distinct names: pairs of acquire and release per second."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterable

from .. import fleet, pipelined
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from . import contestants as who_is
from . import raw_load
from .contestants import HOLDFAST_ASYNC, REDIS_PY_ASYNC

CALLERS = 100
RAW, REDIS_BENCHMARK = "(raw pipelined load)", "(redis-benchmark)"


def contestants() -> Iterable[Contestant]:
    yield who_is.contestant("holdfast-async")
    yield who_is.contestant("redis-py-async")
    try:
        importlib.import_module("holdfast.engine.scripts").Scripts().get("locks/acquire")
        missing = ""
    except Exception as error:  # whatever keeps the scripts from loading is the reason to show
        missing = f"no scripts to send: {error}"
    yield Contestant(RAW, "raw", unavailable=missing)
    tool = shutil.which("redis-benchmark")
    version = fleet.output([tool, "--version"], 5).strip() if tool else ""
    yield Contestant(REDIS_BENCHMARK, "redis-benchmark", version, missing or ("" if tool else "not installed"))


def turn(who: Contestant, now: Turn) -> Figures:
    if who.lib == "raw":
        return _raw(now)
    if who.lib == "redis-benchmark":
        return _redis_benchmark(now)
    extra = ("--callers", str(CALLERS), "--names")
    command = who_is.command(who, now.server.addr, "throughput", now.seconds, 0, *extra)
    before: list[float] = []
    outcome = fleet.run([command], now.seconds, ready=lambda: before.append(now.server.cpu_seconds()))
    (rows,) = outcome.rows
    until = min(row[0] for row in rows) + int(now.seconds * 1e9)
    return {
        "pairs": sum(1 for row in rows if row[3] <= until) / now.seconds,
        "server_us": (now.server.cpu_seconds() - before[0]) / len(rows) * 1e6,
    }


def _raw(now: Turn) -> Figures:
    command = [sys.executable, "-m", "bench.locks.raw_load", now.server.addr, str(now.seconds)]
    before = now.server.cpu_seconds()
    answer = json.loads(fleet.output(command, now.seconds + 60))
    sent = answer["replies"]
    return {
        "pairs": answer["pairs_per_s"],
        "server_us": (now.server.cpu_seconds() - before) / (sum(sent.values()) / 2) * 1e6,
        **{f"replies_{word}": float(count) for word, count in sent.items()},
    }


def _redis_benchmark(now: Turn) -> Figures:
    """Acquires of ever new names, then releases: most of those find nothing held, so this flatters the server."""
    for command in raw_load.raw_scripts():
        now.server.client.execute_command("SCRIPT", "LOAD", _third_argument(command))
    requests = int(50_000 * now.seconds)
    taking, releasing = (
        [part.replace(b"raw:0", b"raw:__rand_int__") for part in _parts(command)]
        for command in raw_load.raw_requests(1)[0]
    )
    acquires = _requests_per_second(now, requests, taking)
    releases = _requests_per_second(now, requests, releasing)
    pairs = 1 / (1 / acquires + 1 / releases)
    return {"pairs": pairs, "acquires": acquires, "releases": releases}


def _requests_per_second(now: Turn, requests: int, command: list[bytes]) -> float:
    host, _, port = now.server.addr.rpartition(":")
    load = ["-P", str(pipelined.PIPELINE), "-c", str(pipelined.CONNECTIONS), "-n", str(requests), "-r", "1000000000"]
    words = [part.decode() for part in command]
    text = fleet.output(["redis-benchmark", "-h", host, "-p", port, *load, "-q", *words], 120)
    rates = re.findall(r"([\d.]+) requests per second", text)
    if not rates:
        raise fleet.WorkerFailed(f"redis-benchmark: {text.strip()[-200:]}")
    return float(rates[-1])


def _parts(packed: bytes) -> list[bytes]:
    import hiredis

    reader = hiredis.Reader()
    reader.feed(packed)
    return list(reader.gets())


def _third_argument(packed: bytes) -> bytes:
    return _parts(packed)[2]


def bars(results: Results) -> list[Bar]:
    ratios = results.ratios(HOLDFAST_ASYNC, "pairs", REDIS_PY_ASYNC)
    ratio = results.ratio(HOLDFAST_ASYNC, "pairs", REDIS_PY_ASYNC)
    what = f"{HOLDFAST_ASYNC}: pairs over {REDIS_PY_ASYNC}'s"
    made = [Bar(what, "≥ 4", f"{ratio:.2f}" if ratios else "", ratio >= 4 if ratios else None)]
    for limit in (RAW, REDIS_BENCHMARK):
        part = results.ratio(HOLDFAST_ASYNC, "pairs", limit)
        known = bool(results.ratios(HOLDFAST_ASYNC, "pairs", limit))
        made.append(Bar(f"{HOLDFAST_ASYNC}: part of {limit}", "reported", f"{part:.2f}" if known else "", None))
    return made


SCENARIO = Scenario(
    name="throughput",
    title="one asyncio process, 100 callers, distinct names",
    how=(
        "Pairs of acquire and release. The raw load sends Holdfast's own scripts over 50 connections, 16 at a time, "
        "with nothing but a socket and hiredis; redis-benchmark the same, but its releases mostly find nothing held."
    ),
    metrics=(
        Metric("pairs", "acquire+release pairs", "per s", digits=0),
        Metric("server_us", "server CPU per pair", "µs", higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("pairs", REDIS_PY_ASYNC),
    plots=("pairs",),
    rounds=5,
    seconds=3.0,
)
