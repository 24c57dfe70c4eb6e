"""What the scenarios with several processes on one name have in common: run a fleet, and read its rows."""

from __future__ import annotations

import itertools
import time

from .. import fleet
from ..harness import Contestant, Figures, Turn
from ..stats import percentile
from ..wiretap import WireTap
from . import contestants

NAME = "contended"
MIDDLE = (0.2, 0.9)  # the part of a turn in which the running state is measured


def figures(outcome: fleet.Outcome, seconds: float) -> Figures:
    """Rates and waits of a fleet. Only grants inside the time count; every wait begun in it does, however it ended."""
    rows = outcome.rows
    if not any(rows):
        raise fleet.WorkerFailed("nobody got the lock")
    begun = min(row[0] for process in rows for row in process)
    until = begun + int(seconds * 1e9)
    shares = [sum(1 for row in process if row[1] <= until) for process in rows]
    every = sorted((row for process in rows for row in process), key=lambda row: row[1])
    waits = [(end - start) / 1e6 for start, end in [*((row[0], row[1]) for row in every), *outcome.stuck]]
    holds = [(row[2] - row[1]) / 1e6 for row in every]
    return {
        "rate": sum(shares) / seconds,
        "share_min": float(min(shares)),
        "share_max": float(max(shares)),
        "wait_p50": percentile(waits, 50),
        "wait_p99": percentile(waits, 99),
        "wait_max": max(waits),
        "stuck": float(len(outcome.stuck)),
        "hold_mean": sum(holds) / len(holds),
        # Two holders at once, as they saw it themselves: a benchmark of locks that do not exclude is worthless.
        "overlaps": float(sum(1 for a, b in itertools.pairwise(every) if b[1] < a[2])),
    }


def contend(who: Contestant, turn: Turn, processes: int, hold_ms: float) -> Figures:
    command = contestants.command(who, turn.server.addr, NAME, turn.seconds, hold_ms)
    return figures(fleet.run([command] * processes, turn.seconds), turn.seconds)


def commands_per_acquisition(who: Contestant, turn: Turn, processes: int, hold_ms: float, *extra: str) -> Figures:
    """What the clients send for one acquisition and its release, counted on the wire in a turn of its own.

    `commands` is the whole turn, with the start in it, where everybody arrives at once and a client may subscribe for
    the first time: the shorter the turn, the more that weighs. `commands_steady` is the middle of the turn.
    """
    seconds = turn.seconds
    with WireTap(turn.server.port) as tap:
        before: list[int] = []

        def in_the_middle() -> tuple[int, int, int, int]:
            time.sleep(seconds * MIDDLE[0])
            begun, counted = time.monotonic_ns(), tap.commands
            time.sleep(seconds * (MIDDLE[1] - MIDDLE[0]))
            return begun, time.monotonic_ns(), counted, tap.commands

        command = contestants.command(who, tap.addr, NAME, seconds, hold_ms, *extra)
        outcome = fleet.run(
            [command] * processes, seconds, ready=lambda: before.append(tap.commands), during=in_the_middle
        )
        sent = tap.commands - before[0]
    begun, ended, first, last = outcome.during
    return {
        "commands": sent / sum(len(rows) for rows in outcome.rows),
        "commands_steady": (last - first) / granted_between(outcome, begun, ended),
    }


def granted_between(outcome: fleet.Outcome, begun: int, ended: int) -> int:
    grants = sum(1 for rows in outcome.rows for row in rows if begun <= row[1] <= ended)
    if not grants:
        raise fleet.WorkerFailed("nobody got the lock in the middle of the run")
    return grants
