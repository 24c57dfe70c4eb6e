"""Does one more observation cost more, the more keys are known? 1 000 and 1 000 000, with 10, 1 and 0 % changed."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..report import number
from .observe_worker import SHARES

SIZES = {"1 000 keys": 1_000, "1 000 000 keys": 1_000_000}
SMALL, LARGE = SIZES
QUICK = 50  # a fiftieth
OBSERVATIONS = 20_000
FLAT = 1.2
LIMIT = 300.0


def contestants() -> Iterable[Contestant]:
    version = importlib.metadata.version("holdfast")
    return [Contestant(name, str(size), version, ours=True) for name, size in SIZES.items()]


def turn(who: Contestant, now: Turn) -> Figures:
    keys = max(1_000, int(who.lib) // (QUICK if now.quick else 1))
    observations = OBSERVATIONS // (10 if now.quick else 1)
    command = [sys.executable, "-m", "bench.monitor.observe_worker", now.server.addr, str(keys), str(observations)]
    figures: Figures = fleet.run([command], LIMIT).reports[0]
    return figures


def bars(results: Results) -> list[Bar]:
    made = []
    for share in SHARES:
        what = f"an observation, {share} % changed"
        shown, ratio = _growth(results, f"us_{share}")
        met = ratio <= FLAT if shown else None
        made.append(Bar(f"{what}, server time: {LARGE} over {SMALL}", f"≤ {FLAT}", shown, met))
        shown, _ = _growth(results, f"cpu_{share}")
        made.append(Bar(f"{what}, server CPU: {LARGE} over {SMALL}", "reported", shown, None))
        shown, _ = _growth(results, f"rate_{share}")
        made.append(Bar(f"{what}, per second: {LARGE} over {SMALL}", "reported", shown, None))
    for key, what in (("get_us", "server time"), ("get_cpu", "server CPU")):
        shown, _ = _growth(results, key)
        made.append(
            Bar(f"a bare GET of the same keys (control), {what}: {LARGE} over {SMALL}", "reported", shown, None)
        )
    known = results.values(LARGE, "bytes")
    shown = f"{number(results.median(LARGE, 'bytes'), 0)} bytes" if known else ""
    made.append(Bar(f"server memory per known key, {LARGE}", "reported", shown, None))
    return made


def _growth(results: Results, key: str) -> tuple[str, float]:
    ratio = results.ratio(LARGE, key, SMALL)
    return f"{ratio:.2f}" if results.ratios(LARGE, key, SMALL) else "", ratio


def _metrics() -> Iterable[Metric]:
    for share in SHARES:
        yield Metric(f"rate_{share}", f"observations,\n{share} % changed", "per s", 0)
    for share in SHARES:
        yield Metric(f"cpu_{share}", f"server\nCPU,\n{share} %", "µs", 2, higher_is_better=False)
    yield Metric("us_1", "in the\nscript,\n1 %", "µs", 2, higher_is_better=False)
    yield Metric("get_cpu", "CPU of a\nbare GET", "µs", 2, higher_is_better=False)
    yield Metric("bytes", "memory\nper key", "bytes", 0, higher_is_better=False)
    yield Metric("loaded", "loaded", "per s", 0)


SCENARIO = Scenario(
    name="observe",
    title="one more observation where 1 000 and 1 000 000 keys are known; 10, 1 and 0 % changed",
    how=(
        "One asyncio process, 4 callers, `observe_many` of 100, keys at random, states of about 110 bytes of JSON. "
        "All keys become known through `observe_many` (`loaded`). Then 3 times 20 000 observations for each share, in "
        "turn. The log of 10 000 changes is read up to its end before each sample, so that changes "
        "make room for themselves as they do beside workers. Per observation: server time is that of the script, "
        "from INFO commandstats, server CPU is all of the server, with the network. A bare GET of the same keys, 100 "
        "in a pipeline, is the control for what the server and the caches do by themselves. Memory is used_memory "
        "without the log, per known key. Every outcome is compared with what it must be. (--quick: a fiftieth of the "
        "keys, a tenth of the observations.)"
    ),
    metrics=tuple(_metrics()),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("us_1", SMALL),
    plots=("rate_10", "rate_1", "rate_0", "us_1"),
    rounds=3,
)
