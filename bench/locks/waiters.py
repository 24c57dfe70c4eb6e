"""Does a hand-over cost more when more are waiting? Client commands and server work, with 8 and with 64 waiters."""

from __future__ import annotations

import time
from collections.abc import Iterable

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..stats import median
from . import contention
from . import contestants as who_is
from .contestants import HOLDFAST_ASYNC

PROCESSES = 8
CALLERS = (8, 64)
HOLD_MS = 5.0
SAME = 1.25  # server time per hand-over, 64 waiters over 8: what noise on a shared machine makes of "the same"


def contestants() -> Iterable[Contestant]:
    return [who_is.contestant(lib) for lib in ("holdfast-async", "redis-py-async")]


def turn(who: Contestant, now: Turn) -> Figures:
    figures: Figures = {}
    for callers in CALLERS:
        extra = ("--callers", str(callers // PROCESSES))
        now.server.reset()
        cpu, scripts = _server_work(who, now, extra)
        now.server.reset()
        sent = contention.commands_per_acquisition(who, now, PROCESSES, HOLD_MS, *extra)
        figures |= {f"cpu_{callers}": cpu, f"scripts_{callers}": scripts}
        figures |= {f"{key}_{callers}": value for key, value in sent.items()}
    figures["cpu_ratio"] = figures["cpu_64"] / figures["cpu_8"]
    figures["commands_ratio"] = figures["commands_64"] / figures["commands_8"]
    return figures


def _server_work(who: Contestant, now: Turn, extra: tuple[str, ...]) -> tuple[float, float]:
    """Server processor time and time in scripts per hand-over, in µs, over the middle of the run.

    What the server uses with the same connections open and nobody calling is taken off: its timers would otherwise
    be counted as work for the few hundred hand-overs of a second.
    """
    server, idle = now.server, [0.0]

    def sample() -> tuple[int, float, float]:
        return time.monotonic_ns(), server.cpu_seconds(), server.script_seconds()

    def at_rest() -> None:
        first = sample()
        time.sleep(min(now.seconds, 1.0))
        last = sample()
        idle[0] = (last[1] - first[1]) / ((last[0] - first[0]) / 1e9)

    def in_the_middle() -> tuple[tuple[int, float, float], tuple[int, float, float]]:
        time.sleep(now.seconds * contention.MIDDLE[0])
        first = sample()
        time.sleep(now.seconds * (contention.MIDDLE[1] - contention.MIDDLE[0]))
        return first, sample()

    command = who_is.command(who, server.addr, contention.NAME, now.seconds, HOLD_MS, *extra)
    outcome = fleet.run([command] * PROCESSES, now.seconds, ready=at_rest, during=in_the_middle)
    first, last = outcome.during
    grants = contention.granted_between(outcome, first[0], last[0])
    cpu = last[1] - first[1] - idle[0] * (last[0] - first[0]) / 1e9
    return cpu / grants * 1e6, (last[2] - first[2]) / grants * 1e6


def bars(results: Results) -> list[Bar]:
    made = []
    for callers in CALLERS:
        sent = results.values(HOLDFAST_ASYNC, f"commands_{callers}")
        reached = f"{median(sent):.2f}" if sent else ""
        what = f"client commands per acquisition, {callers} waiters"
        made.append(Bar(what, "≤ 3", reached, median(sent) <= 3 if sent else None))
        steady = results.values(HOLDFAST_ASYNC, f"commands_steady_{callers}")
        made.append(Bar(f"{what}, without the start", "reported", f"{median(steady):.2f}" if steady else "", None))
    ratios = results.values(HOLDFAST_ASYNC, "cpu_ratio")
    reached = f"{median(ratios):.2f}" if ratios else ""
    what = "server work per hand-over, 64 waiters over 8"
    made.append(Bar(what, f"the same (≤ {SAME})", reached, median(ratios) <= SAME if ratios else None))
    return made


def _metrics() -> Iterable[Metric]:
    for key, label, unit, digits in (
        ("commands", "commands per acquired", "", 2),
        ("cpu", "server CPU per hand-over", "µs", 0),
        ("scripts", "of it in scripts", "µs", 0),
    ):
        for callers in CALLERS:
            yield Metric(f"{key}_{callers}", f"{label},\n{callers} waiters", unit, digits, higher_is_better=False)
    yield Metric("cpu_ratio", "server CPU, 64 over 8", "", 2, higher_is_better=False)


SCENARIO = Scenario(
    name="waiters",
    title="work per hand-over with 8 and with 64 waiters, 5 ms hold",
    how=(
        "8 processes with 1 or 8 callers, each with a client and connections of its own. Server CPU is INFO cpu over "
        "the middle of the run, less what the idle server uses with the same connections; commands are counted on the "
        "wire, in a turn of their own, from its start: the first wait of a client also subscribes, which weighs more "
        "the shorter the turn (--quick)."
    ),
    metrics=tuple(_metrics()),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("commands_8", "commands_64", "cpu_8", "cpu_64"),
    rounds=3,
    seconds=5.0,
)
