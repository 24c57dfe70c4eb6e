"""100 000 locks held by one process: what they weigh on both sides, what keeping them costs, and whether all stay."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..report import number
from . import contestants as who_is
from .contestants import HOLDFAST_ASYNC

COUNT, TTL, SECONDS = 100_000, 30.0, 35.0  # longer than the TTL: a lease that was not renewed is gone by the end
QUICK = (5_000, 3.0, 4.0)


def contestants() -> Iterable[Contestant]:
    return [who_is.contestant(lib) for lib in ("holdfast-async", "redis-py-async")]


def turn(who: Contestant, now: Turn) -> Figures:
    count, ttl, seconds = QUICK if now.quick else (COUNT, TTL, SECONDS)
    if not who.ours:
        seconds = 1.0  # no renewal to measure
    server = now.server
    worker_arguments = [who.lib, server.addr, str(count), str(ttl), str(seconds)]
    command = [sys.executable, "-m", "bench.locks.many_worker", *worker_arguments]
    with fleet.started([command]) as workers:
        (worker,) = workers
        idle = _cpu_per_second(now, 1.0)
        memory = server.used_memory()
        with fleet.limited(workers, 180, f"taking {count} locks"):
            worker.say_go()
            taken = json.loads(worker.line())
        memory = server.used_memory() - memory
        keys, expired = server.client.dbsize(), _expired(now)
        with fleet.limited(workers, seconds + 60, f"holding {count} locks"):
            worker.say_go()
            cpu = _cpu_per_second(now, seconds)
            held = json.loads(worker.line())
        gone = server.client.dbsize() - keys
        expired = _expired(now) - expired
    return {
        "locks": float(count),
        "ttl": ttl,
        "held_for": seconds,
        "server_bytes": memory / count,
        "client_bytes": taken["resident"] / count,
        "client_bytes_after": held["resident"] / count,
        "taken_per_s": count / taken["taking"],
        "lost": float(held["lost"]),
        "stolen": float(held["stolen"]),
        "keys_gone": float(-gone),
        "keys_expired": float(expired),
        **({"server_cpu": (cpu - idle) * 100, "client_cpu": held["cpu_per_s"] * 100} if who.ours else {}),
        "loop_late_ms": held["loop_late_ms"],
    }


def _cpu_per_second(now: Turn, seconds: float) -> float:
    cpu, begun = now.server.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (now.server.cpu_seconds() - cpu) / (time.monotonic() - begun)


def _expired(now: Turn) -> int:
    return int(now.server.client.info("stats")["expired_keys"])


def bars(results: Results) -> list[Bar]:
    signs = [results.values(HOLDFAST_ASYNC, key) for key in ("lost", "stolen", "keys_expired")]
    most = max((sum(each) for each in zip(*signs, strict=True)), default=float("nan"))
    known = bool(signs[0])
    what = "leases lost, or granted to another client of a sample, worst round"
    made = [Bar(what, "0", number(most, 0) if known else "", most == 0 if known else None)]
    for key, what, unit, digits in (
        ("server_bytes", "memory per lock on the server", "bytes", 0),
        ("client_bytes", "memory per lock in the process", "bytes", 0),
        ("server_cpu", "renewal, server", "% of a core", 2),
        ("client_cpu", "renewal, process", "% of a core", 2),
    ):
        known = results.values(HOLDFAST_ASYNC, key)
        reached = f"{number(results.median(HOLDFAST_ASYNC, key), digits)} {unit}" if known else ""
        made.append(Bar(what, "reported", reached, None))
    return made


SCENARIO = Scenario(
    name="many",
    title="100 000 locks held by one process",
    how=(
        "TTL 30 s, held for 35 s (--quick: 5 000 locks, 3 s, 4 s). Server memory is used_memory, the process's its "
        "resident set. Renewal is processor time per second while nothing else happens, less the idle server's. "
        "redis-py's Lock has no renewal: memory only."
    ),
    metrics=(
        Metric("server_bytes", "server memory per lock", "bytes", 0, higher_is_better=False),
        Metric("client_bytes", "process memory per lock", "bytes", 0, higher_is_better=False),
        Metric("taken_per_s", "taken", "per s", 0),
        Metric("server_cpu", "renewal, server", "% of a core", 2, higher_is_better=False),
        Metric("client_cpu", "renewal, process", "% of a core", 2, higher_is_better=False),
        Metric("loop_late_ms", "event loop late, worst", "ms", 1, higher_is_better=False),
        Metric("lost", "leases lost", "", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("server_bytes", "client_bytes", "server_cpu", "client_cpu"),
    rounds=1,
)
