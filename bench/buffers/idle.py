"""What 100 workers with nothing to do cost the server: commands per second, processor time, connections."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Iterable

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..report import number
from ..wiretap import WireTap

WORKERS, PROCESSES = 100, 4
SECONDS, SETTLE = 30.0, 20.0
QUICK = (8.0, 5.0)
NAME = f"Holdfast, {WORKERS} workers"


def contestants() -> Iterable[Contestant]:
    yield Contestant(NAME, "holdfast", importlib.metadata.version("holdfast"), ours=True)


def turn(who: Contestant, now: Turn) -> Figures:
    seconds, settle = QUICK if now.quick else (SECONDS, SETTLE)
    alone = _cpu_per_second(now, 2.0)
    now.server.reset()
    with WireTap(now.server.port) as tap:
        counted = _measure(now, tap.addr, seconds, settle, tap)
    now.server.reset()
    direct = _measure(now, now.server.addr, seconds, settle, None)
    return {
        "commands": counted["commands"],
        "first_commands": counted["first_commands"],
        "server_cpu": (direct["server_cpu"] - alone) * 100,
        "worker_cpu": direct["worker_cpu"] * 100,
        "connections": direct["connections"],
        "seconds": seconds,
    }


def _measure(now: Turn, addr: str, seconds: float, settle: float, tap: WireTap | None) -> Figures:
    """Commands per second are counted on the wire, which adds work; so processor time is measured without."""
    command = [sys.executable, "-m", "bench.buffers.idle_worker", addr, str(WORKERS // PROCESSES)]
    with fleet.started([command] * PROCESSES) as workers, contextlib.ExitStack() as stack:
        stack.enter_context(fleet.limited(workers, settle + seconds + 60, "idling"))
        time.sleep(settle)
        first = tap.commands if tap else 0
        for worker in workers:
            worker.say_go()
        begun = time.monotonic()
        server = _cpu_per_second(now, seconds)
        sent = (tap.commands if tap else 0) - first
        elapsed = time.monotonic() - begun
        for worker in workers:
            worker.say_go()
        used = sum(json.loads(worker.line())["cpu"] for worker in workers)
        return {
            "commands": sent / elapsed,
            "first_commands": float(first),
            "server_cpu": server,
            "worker_cpu": used / elapsed / WORKERS,
            "connections": float(now.server.client.info("clients")["connected_clients"]),
        }


def _cpu_per_second(now: Turn, seconds: float) -> float:
    cpu, begun = now.server.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (now.server.cpu_seconds() - cpu) / (time.monotonic() - begun)


def bars(results: Results) -> list[Bar]:
    made = []
    for key, what, unit, digits in (
        ("commands", "commands of all idle workers", "per s", 1),
        ("server_cpu", "their cost to the server", "% of a core", 2),
        ("worker_cpu", "cost of one in its process", "% of a core", 3),
    ):
        known = results.values(NAME, key)
        reached = f"{number(results.median(NAME, key), digits)} {unit}" if known else ""
        made.append(Bar(f"{NAME}: {what}", "reported", reached, None))
    return made


SCENARIO = Scenario(
    name="idle",
    title="100 idle workers in 4 processes, over 30 s after 20 s of settling",
    how=(
        "Each worker has a client and connections of its own, as if it were a pod. Commands are counted on the wire, "
        "in a turn of its own; the server's processor time is INFO cpu, less what the server uses with nobody there. "
        "(--quick: 8 s after 5 s.)"
    ),
    metrics=(
        Metric("commands", "commands", "per s", 1, higher_is_better=False),
        Metric("server_cpu", "server CPU", "% of a core", 2, higher_is_better=False),
        Metric("worker_cpu", "CPU per worker", "% of a core", 3, higher_is_better=False),
        Metric("first_commands", "commands while\nstarting and settling", "", 0, higher_is_better=False),
        Metric("connections", "connections", "", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("commands", "server_cpu"),
    rounds=3,
)
