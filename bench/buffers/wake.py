"""How long it takes from the append that reaches the threshold to the handler's first line, with idle workers."""

from __future__ import annotations

from collections.abc import Iterable

from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..stats import percentile
from . import movers

PROCESSES = 4
TIMES, PACE_MS = 500, 20.0
QUICK = 50
HOLDFAST = "Holdfast"
PEERS = {"streaq": "streaq", "saq": "SAQ", "taskiq": "taskiq", "arq": "arq", "arq-10ms": "arq, poll every 10 ms"}
LIMIT = 400.0  # arq polls every 0.5 s, so its turn is the longest


def contestants() -> Iterable[Contestant]:
    yield movers.holdfast(HOLDFAST, "holdfast")
    for lib, label in PEERS.items():
        yield movers.peer(label, lib)


def turn(who: Contestant, now: Turn) -> Figures:
    times = QUICK if now.quick else TIMES
    moved = movers.run(
        now.server, who.lib, processes=PROCESSES, messages=times * 10, users=times, group=1 if who.ours else 10,
        pace_ms=PACE_MS, limit=LIMIT,
    )  # fmt: skip
    delays = [delay / 1e3 for delay in moved.delays_us]
    return {
        "p50": percentile(delays, 50),
        "p99": percentile(delays, 99),
        "worst": max(delays),
        "times": float(len(delays)),
    }


def bars(results: Results) -> list[Bar]:
    values = results.values(HOLDFAST, "p50")
    middle = results.median(HOLDFAST, "p50")
    what = f"{HOLDFAST}: from the append to the handler, p50"
    made = [Bar(what, "< 5 ms", f"{middle:.2f} ms" if values else "", middle < 5 if values else None)]
    p99 = results.median(HOLDFAST, "p99")
    made.append(Bar(f"{HOLDFAST}: the same, p99", "reported", f"{p99:.2f} ms" if values else "", None))
    return made


SCENARIO = Scenario(
    name="wake",
    title="from the append that reaches the threshold to the handler's first line, 4 idle worker processes",
    how=(
        "One sender, a new user every 20 ms: nine appends that wake nobody, then the tenth, timed from before its call "
        "in the sender to the handler in another process. The others get one task with ten messages, timed alike; "
        "they have no threshold. arq polls every 0.5 s by default."
    ),
    metrics=(
        Metric("p50", "p50", "ms", 2, higher_is_better=False),
        Metric("p99", "p99", "ms", 2, higher_is_better=False),
        Metric("worst", "worst", "ms", 2, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("p50", "p99"),
    log_scale=frozenset({"p50", "p99"}),
    rounds=3,
)
