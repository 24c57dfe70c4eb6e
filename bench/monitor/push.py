"""From `observe` to a webhook that has accepted it: changes and messages per second, and how long one takes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..report import number
from .push_worker import MONITOR

LIMIT = 60.0
SETTLE = 0.3
WARM = 20


@dataclass(frozen=True)
class Case:
    """Who is told, of how many changes as fast as it goes; then of how many one by one, with how many ms between."""

    subscribers: int
    max_changes: int
    changes: int
    single: int = 0
    pace_ms: float = 0.0


CASES = {
    "1 subscriber, 1 change a message": Case(1, 1, 2_000, 150, 25),
    "1 subscriber, up to 100": Case(1, 100, 8_000),
    "50 subscribers, up to 100": Case(50, 100, 1_000, 15, 300),
}
ONE, HUNDRED, FIFTY = CASES
BARE = "(bare POSTs, one after another)"
BARE_POSTS = 2_000


def contestants() -> Iterable[Contestant]:
    version = importlib.metadata.version("holdfast")
    for name in CASES:
        yield Contestant(name, name, version, ours=True)
    yield Contestant(BARE, "bare")


def turn(who: Contestant, now: Turn) -> Figures:
    part = 10 if now.quick else 1
    if who.lib == "bare":
        return _bare(BARE_POSTS // part)
    case = CASES[who.lib]
    return _monitor(now, case, case.changes // part, case.single // (5 if now.quick else 1))


def _monitor(now: Turn, case: Case, changes: int, single: int) -> Figures:
    module = [sys.executable, "-m", "bench.monitor.push_worker"]
    counts = [WARM, changes, *([single] if single else [])]
    phases = [str(WARM), str(changes), *([f"{single}@{case.pace_ms:g}"] if single else [])]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
        receiver, port = _receiver(stack, [count * case.subscribers for count in counts])
        store = f"sqlite:///{Path(folder) / 'monitor.db'}"
        (observer,) = stack.enter_context(fleet.started([[*module, "observe", now.server.addr, *phases]]))
        working = [*module, "work", now.server.addr, store, port, str(case.subscribers), str(case.max_changes)]
        (worker,) = stack.enter_context(fleet.started([working]))
        stack.enter_context(fleet.limited([receiver, observer, worker], LIMIT, "telling all changes"))
        _phase(observer, receiver, case.subscribers)
        _wait_for_readers(now)
        cpu = now.server.cpu_seconds()
        observed, told = _phase(observer, receiver, case.subscribers)
        cpu = now.server.cpu_seconds() - cpu
        seconds = (told["last"] - observed["started"]) / 1e9
        figures = {
            "changes": changes / seconds,
            "messages": told["messages"] / seconds,
            "deliveries": told["changes"] / seconds,
            "observed": changes / (observed["ended"] - observed["started"]) * 1e9,
            "server_us": cpu / told["messages"] * 1e6,
            "connections": float(told["connections"]),
        }
        if single:
            _wait_for_readers(now)
            _, told = _phase(observer, receiver, case.subscribers)
            figures |= {"p50": told["p50"], "p99": told["p99"]}
    return figures


def _bare(posts: int) -> Figures:
    with contextlib.ExitStack() as stack:
        receiver, port = _receiver(stack, [WARM, posts])
        command = [sys.executable, "-m", "bench.monitor.push_worker", "bare", port, str(WARM), str(posts)]
        (poster,) = stack.enter_context(fleet.started([command]))
        stack.enter_context(fleet.limited([receiver, poster], LIMIT, "posting"))
        _phase(poster, receiver, 1)
        posted, told = _phase(poster, receiver, 1)
        rate = posts / (told["last"] - posted["started"]) * 1e9
        return {"changes": rate, "messages": rate, "deliveries": rate, "connections": float(told["connections"])}


def _receiver(stack: contextlib.ExitStack, counts: list[int]) -> tuple[fleet.Worker, str]:
    command = [sys.executable, "-m", "bench.monitor.endpoint", *map(str, counts)]
    (receiver,) = stack.enter_context(fleet.started([command]))
    return receiver, receiver.line()


def _phase(observer: fleet.Worker, receiver: fleet.Worker, subscribers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the observer and the receiver say of it. A change that is missing, twice or out of order fails the turn."""
    observer.say_go()
    observed, told = json.loads(observer.line()), json.loads(receiver.line())
    if told["wrong"] or told["subscribers"] != subscribers:
        raise fleet.WorkerFailed(
            f"{told['subscribers']} of {subscribers} subscribers were told, {told['wrong']} of them twice or unordered"
        )
    return observed, told


def _wait_for_readers(now: Turn) -> None:
    """Until the log is read for subscribers and for history, and everybody has had a moment to fall asleep."""
    client, base = now.server.client, f"hf:{{monitor.{MONITOR}}}:"
    deadline = time.monotonic() + LIMIT
    while set(client.hmget(f"{base}cur", "deliver", "history")) != {client.get(f"{base}seq")}:
        if time.monotonic() > deadline:
            raise fleet.WorkerFailed("the log was not read to its end")
        time.sleep(0.02)
    time.sleep(SETTLE)


def bars(results: Results) -> list[Bar]:
    made = []
    for name in CASES:
        for key, what in (("changes", "changes/s"), ("messages", "messages/s")):
            known = results.values(name, key)
            shown = number(results.median(name, key), 0) if known else ""
            made.append(Bar(f"{name}: {what}, from observe to accepted", "reported", shown, None))
    for name in (ONE, FIFTY):
        for key in ("p50", "p99"):
            known = results.values(name, key)
            shown = f"{number(results.median(name, key), 2)} ms" if known else ""
            made.append(Bar(f"{name}: from observe to accepted when idle, {key}", "reported", shown, None))
    known = results.ratios(ONE, "messages", BARE)
    shown = f"{results.ratio(ONE, 'messages', BARE):.2f}" if known else ""
    made.append(Bar(f"{ONE}: messages/s over {BARE}", "reported", shown, None))
    return made


SCENARIO = Scenario(
    name="push",
    title="from `observe` to an HTTP endpoint that has accepted it: one worker process, 1 and 50 subscribers",
    how=(
        "The server, an observer, a worker process (`hf.work()`, 10 messages at once) and the receiver, which answers "
        "200 over connections that stay open, each a process of its own. Every subscriber wants everything; a state "
        "has about 140 bytes of JSON, a change both states. The worker also keeps history and the push log in SQLite, "
        "as webhooks need a store. 2 000, 8 000 and 1 000 changes, observed a hundred in a call; timed from "
        "just before the first call until the receiver has answered the last message. A subscriber gets one message "
        "at a time, in order, acknowledged on the server after each. p50 and p99: changes one by one, each 25 ms (50 "
        "subscribers: 300 ms) after the one before, timed from just before `observe`; with 50 subscribers every "
        "message counts. The bare POSTs are such messages of one change from a plain socket, for scale. The receiver "
        "checks that each subscriber got every change once and in order. (--quick: a tenth.)"
    ),
    metrics=(
        Metric("changes", "changes", "per s", 0),
        Metric("messages", "messages", "per s", 0),
        Metric("deliveries", "changes by\nsubscribers", "per s", 0),
        Metric("observed", "observed\nmeanwhile", "per s", 0),
        Metric("server_us", "server CPU\nper message", "µs", 0, higher_is_better=False),
        Metric("p50", "idle, p50", "ms", 2, higher_is_better=False),
        Metric("p99", "idle, p99", "ms", 2, higher_is_better=False),
        Metric("connections", "connections", "", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("changes", "messages", "p50", "p99"),
    log_scale=frozenset({"changes", "messages"}),
    rounds=3,
)
