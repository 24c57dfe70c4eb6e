"""Who moves messages from senders to handlers, in which version, or why not; and running one of them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import fleet, peers
from ..harness import Contestant
from ..server import Server

CONCURRENCY = 10
SETTLE = 0.5
QUIET = 0.25  # after the last message, for those that come twice
PACKAGES = {
    "streaq": ("streaq", "coredis"),
    "saq": ("saq", "redis"),
    "taskiq": ("taskiq", "taskiq-redis", "redis"),
    "arq": ("arq", "redis"),
    "pydocket": ("pydocket", "redis"),
    "celery": ("celery", "kombu", "redis"),
}
"""Peers, and the packages whose versions are shown."""
OPTIONS = {
    "arq-10ms": ("arq", "0.01"),
    "pydocket-10ms": ("pydocket", "0.01"),
    "runs-threads": ("runs", "threads"),
}
"""The same with an option of its worker."""
OURS = {"holdfast": "bench.buffers.holdfast_mover", "runs": "bench.runs.holdfast_runner"}
"""Our own programs, in the environment of the bench."""


def holdfast(name: str, lib: str) -> Contestant:
    return Contestant(name, lib, importlib.metadata.version("holdfast"), ours=True)


def peer(name: str, lib: str, mode: str = "") -> Contestant:
    package, _ = OPTIONS.get(lib, (lib, ""))
    env = peers.environment(package)
    return Contestant(name, f"{lib} {mode}".strip(), env.version(*PACKAGES[package]), env.reason)


def command(lib: str, role: str, *arguments: object) -> list[str]:
    lib, option = OPTIONS.get(lib, (lib, ""))
    if lib in OURS:
        start = [sys.executable, "-m", OURS[lib]]
    else:
        start = [peers.environment(lib).python, "-m", f"bench.peers.python.{lib}_peer"]
    return [*start, role, *map(str, arguments), *([option] if option and role == "work" else [])]


@dataclass
class Moved:
    """What a fleet of movers did."""

    started: int
    put_until: int
    absorbed_at: int
    messages: int
    batches: int
    per_process: list[int]
    delays_us: list[float] = field(default_factory=list)
    server_cpu: float = 0.0

    @property
    def seconds(self) -> float:
        return (self.absorbed_at - self.started) / 1e9


def run(
    server: Server, lib: str, *, processes: int, messages: int, users: int, group: int, pace_ms: float, limit: float,
    concurrency: int = CONCURRENCY,
) -> Moved:  # fmt: skip
    """Put messages in from one process until all were seen by the handlers of `processes` workers."""
    working = command(lib, "work", server.addr, concurrency)
    putting = command(lib, "put", server.addr, messages, users, group, pace_ms)
    with fleet.started([putting] + [working] * processes) as (putter, *workers):
        time.sleep(SETTLE)
        cpu = server.cpu_seconds()
        with fleet.limited([putter, *workers], limit, "moving all messages"), _listening(workers) as heard:
            putter.say_go()
            put = json.loads(putter.line())
            latest, delays = _collect(heard, put["messages"])
        cpu = server.cpu_seconds() - cpu
    reports = latest.values()
    return Moved(
        started=put["started"],
        put_until=put["ended"],
        absorbed_at=max(report["last"] for report in reports),
        messages=sum(report["messages"] for report in reports),
        batches=sum(report["batches"] for report in reports),
        per_process=[latest[at]["messages"] if at in latest else 0 for at in range(processes)],
        delays_us=delays,
        server_cpu=cpu,
    )


def drain(server: Server, lib: str, *, messages: int, users: int, concurrency: int, limit: float) -> float:
    """Put all messages in, one by one, then start one worker: messages per second from its first to its last."""
    putting = command(lib, "put", server.addr, messages, users, 1, 0)
    with fleet.started([putting]) as putters, fleet.limited(putters, limit, "putting all messages"):
        putters[0].say_go()
        put = json.loads(putters[0].line())
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(fleet.started([command(lib, "work", server.addr, concurrency)]))
        stack.enter_context(fleet.limited(workers, limit, "draining all messages"))
        latest, _ = _collect(stack.enter_context(_listening(workers)), put["messages"])
    report = latest[0]
    return float((report["messages"] - 1) / (report["last"] - report["first"]) * 1e9)


@contextlib.contextmanager
def _listening(workers: list[fleet.Worker]) -> Iterator[queue.Queue[Any]]:
    """The workers' reports as they come, each with the number of its worker; None and the failure if one ends."""
    heard: queue.Queue[Any] = queue.Queue()
    over = threading.Event()

    def listen(at: int, worker: fleet.Worker) -> None:
        try:
            while not over.is_set():
                heard.put((at, json.loads(worker.line())))
        except (fleet.WorkerFailed, ValueError) as error:
            if not over.is_set():
                heard.put((None, error))

    for at, worker in enumerate(workers):
        threading.Thread(target=listen, args=(at, worker), daemon=True).start()
    try:
        yield heard
    finally:
        over.set()


def _collect(heard: queue.Queue[Any], wanted: int) -> tuple[dict[int, dict[str, Any]], list[float]]:
    latest: dict[int, dict[str, Any]] = {}
    delays: list[float] = []
    while True:
        missing = wanted - sum(report["messages"] for report in latest.values())
        try:
            at, report = heard.get(timeout=None if missing > 0 else QUIET)
        except queue.Empty:
            return latest, delays
        if at is None:
            raise report if isinstance(report, fleet.WorkerFailed) else fleet.WorkerFailed(str(report))
        latest[at] = report
        delays += report["delays_us"]
