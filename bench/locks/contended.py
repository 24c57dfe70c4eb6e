"""8 processes, one name, 5 ms hold: how close to the ideal, how evenly, and how long the unlucky wait."""

from __future__ import annotations

from collections.abc import Iterable

from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..report import number
from ..stats import median
from . import contention
from .contestants import HOLDFAST_ASYNC, HOLDFAST_SYNC, PING, contestant

PROCESSES = 8
HOLD_MS = 5.0
LIBS = (
    *("ping", "holdfast-async", "holdfast-sync", "redis-py-async", "redis-py-1ms", "redis-py-sync"),
    *("python-redis-lock", "pottery", "rueidislock", "redsync", "redisson", "redisson-fair"),
)


def contestants() -> Iterable[Contestant]:
    return [contestant(lib) for lib in LIBS]


def turn(who: Contestant, now: Turn) -> Figures:
    if who.lib == "ping":
        return _ideal(who, now)
    figures = contention.contend(who, now, PROCESSES, HOLD_MS)
    if now.round == 0:
        figures |= contention.commands_per_acquisition(who, now, PROCESSES, HOLD_MS)
    return figures


def _ideal(who: Contestant, now: Turn) -> Figures:
    """One process alone, holding and then making one round trip: what a lock without any cost would reach."""
    alone = contention.contend(who, now, 1, HOLD_MS)
    trip = alone["wait_p50"]
    return {
        "round_trip_ms": trip,
        "rate": 1000 / (HOLD_MS + trip),
        "fair_wait": PROCESSES * (HOLD_MS + trip),
        "hold_mean": alone["hold_mean"],
    }


def bars(results: Results) -> list[Bar]:
    return [bar for name in (HOLDFAST_ASYNC, HOLDFAST_SYNC) for bar in _bars_of(name, results)]


def _bars_of(name: str, results: Results) -> Iterable[Bar]:
    reached = results.ratios(name, "rate", PING)
    ideal, trip = results.median(PING, "rate"), results.median(PING, "round_trip_ms")
    yield Bar(
        f"{name}: part of 1/(hold + round trip of {number(trip, 3)} ms) = {number(ideal)}/s",
        "≥ 0.95",
        f"{median(reached):.3f}" if reached else "",
        median(reached) >= 0.95 if reached else None,
    )
    shares = [
        most / least if least else float("inf")
        for least, most in zip(results.values(name, "share_min"), results.values(name, "share_max"), strict=True)
    ]
    yield Bar(
        f"{name}: most over least acquisitions of a process",
        "≤ 1.15",
        f"{median(shares):.2f}" if shares else "",
        median(shares) <= 1.15 if shares else None,
    )
    waits = results.ratios(name, "wait_p99", PING, "fair_wait")
    yield Bar(
        f"{name}: p99 wait over the fair ideal = {number(results.median(PING, 'fair_wait'))} ms",
        "≤ 1.3",
        f"{median(waits):.2f}" if waits else "",
        median(waits) <= 1.3 if waits else None,
    )
    commands = results.values(name, "commands")
    yield Bar(
        f"{name}: client commands per acquisition",
        "≤ 3",
        f"{median(commands):.2f}" if commands else "",
        median(commands) <= 3 if commands else None,
    )


SCENARIO = Scenario(
    name="contended",
    title="8 processes, one name, 5 ms hold",
    how=(
        "Each hold sleeps 4 ms and spins to 5 ms, so it is equally long for all. The PING row is the ideal: one "
        "process alone, holding and then making one round trip on a plain socket. Commands are counted on the "
        "wire, in a turn of their own. Overlaps: holds of two processes at once, by their own clocks. Stuck: waits "
        "that had not ended 3 s after everybody had stopped."
    ),
    metrics=(
        Metric("rate", "acquired", "per s"),
        Metric("share_min", "least of\na process", digits=0),
        Metric("share_max", "most of\na process", digits=0, higher_is_better=False),
        Metric("wait_p50", "wait p50", "ms", higher_is_better=False),
        Metric("wait_p99", "wait p99", "ms", higher_is_better=False),
        Metric("commands", "commands\nper acquired", digits=2, higher_is_better=False),
        Metric("overlaps", "over-\nlaps", digits=0, higher_is_better=False),
        Metric("stuck", "stuck", digits=0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("rate", PING),
    plots=("rate", "share_min", "wait_p99"),
    rounds=3,
    seconds=5.0,
    log_scale=frozenset({"wait_p99"}),
)
