"""Runs that do nothing, per second: one process starts them, one worker process with 32 at a time runs them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.sync import Holdfast

from .. import fleet
from ..buffers import movers
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from .holdfast_runner import RUNS

CONCURRENCY = 32
TASKS, QUICK, CALLERS = 5_000, 1_000, 100
LIMIT = 120.0
HOLDFAST, THREADS = "Holdfast", "Holdfast, plain function"
OURS = {"runs": HOLDFAST, "runs-threads": THREADS}
PEERS = {
    "streaq": "streaq",
    "saq": "SAQ, retries 2",
    "taskiq": "taskiq, stream broker",
    "arq-10ms": "arq, poll every 10 ms",
    "pydocket-10ms": "pydocket, check every 10 ms",
    "celery": "Celery, acks_late, threads",
}
KEPT_FOR = {
    "runs": 30.0,  # the lease, settings.ttl
    "runs-threads": 30.0,
    "streaq": 60.0,  # idle_timeout
    "saq": 10.0,  # timeout, then a sweep every 60 s; with `retries` above 1, else the job is given up
    "taskiq": 600.0,  # idle_timeout of RedisStreamBroker; its list and pub/sub brokers keep nothing
    "arq-10ms": 310.0,  # job_timeout and 10 s: "jobs are not removed from the queue until they have finished"
    "pydocket-10ms": 300.0,  # redelivery_timeout, then a sweep
    "celery": 3600.0,  # visibility_timeout of the Redis broker, for tasks that are acknowledged late
}
"""Whose jobs survive a worker's death, by its own documentation, and the seconds until they may be run again."""


def contestants() -> Iterable[Contestant]:
    for lib, label in OURS.items():
        yield movers.holdfast(label, lib)
    for lib, label in PEERS.items():
        yield movers.peer(label, lib)


def turn(who: Contestant, now: Turn) -> Figures:
    tasks = QUICK if now.quick else TASKS
    moved = movers.run(
        now.server, who.lib, processes=1, messages=tasks, users=CALLERS, group=1, pace_ms=0, limit=LIMIT,
        concurrency=CONCURRENCY,
    )  # fmt: skip
    if who.ours:
        _check_completed(now, tasks)
    now.server.reset()
    drained = movers.drain(
        now.server, who.lib, messages=tasks, users=CALLERS, concurrency=CONCURRENCY, limit=LIMIT
    )  # fmt: skip
    return {
        "runs": tasks / moved.seconds,
        "drained": drained,
        "put": tasks / ((moved.put_until - moved.started) / 1e9),
        "server_us": moved.server_cpu / tasks * 1e6,
        "repeated": float(moved.messages - tasks),
        "kept_for": KEPT_FOR.get(who.lib, float("nan")),
        "tasks": float(tasks),
    }


def _check_completed(now: Turn, tasks: int) -> None:
    """A handler that was called is not yet a run that has ended as it should."""
    with Holdfast(f"redis://{now.server.addr}") as hf:
        totals = hf.runs(RUNS).totals()
    if totals["completed"] != tasks:
        raise fleet.WorkerFailed(f"{tasks} runs were started, and there are {totals}")


def bars(results: Results) -> list[Bar]:
    made = []
    for lib, theirs in PEERS.items():
        for key, what in (("runs", "runs/s, start to end"), ("drained", "runs/s, drained")):
            known = results.ratios(HOLDFAST, key, theirs)
            ratio = results.ratio(HOLDFAST, key, theirs)
            shown = f"{ratio:.2f}" if known else ""
            must = lib in KEPT_FOR
            met = ratio > 1 if known and must else None
            made.append(Bar(f"{HOLDFAST}: {what}, over {theirs}", "> 1" if must else "reported", shown, met))
    for ours in OURS.values():
        twice = results.values(ours, "repeated")
        shown = f"{max(twice):.0f}" if twice else ""
        made.append(Bar(f"{ours}: run twice, worst round", "0", shown, not max(twice) if twice else None))
    return made


SCENARIO = Scenario(
    name="noop",
    title="5 000 runs that do nothing, from the first start until the handler has seen the last",
    how=(
        "One process starts them (100 callers, each waits for its call), one worker process runs them, 32 at a time. "
        "A run or task gets a message of 60 bytes and counts it. `drained`: all were started before the worker, from "
        "its first handler call to its last. Every contestant is set up to keep a job whose worker is killed; the "
        "last column is the time-out, at its default and by its own documentation, after which such a job may be run "
        "again. Results and finished tasks of the others are not kept; of Holdfast's runs state, result and events "
        "stay readable for a day. taskiq: RedisStreamBroker, the one that acknowledges. SAQ: two attempts, because "
        "with its one a dead worker's job is given up. arq polls and pydocket checks for free places every 10 ms, "
        "because with their 0.5 s and 0.25 s the pause would be all that is measured. Celery: Redis broker, "
        "acks_late, -P threads, the fastest of its pools here. (--quick: 1 000 runs.)"
    ),
    metrics=(
        Metric("runs", "runs,\nstart to end", "per s", 0),
        Metric("drained", "runs,\ndrained", "per s", 0),
        Metric("put", "started", "per s", 0),
        Metric("server_us", "server CPU\nper run", "µs", 1, higher_is_better=False),
        Metric("repeated", "run\ntwice", "", 0, higher_is_better=False),
        Metric("kept_for", "a dead worker's job\nis run again after", "s", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=("runs", "streaq"),
    plots=("runs", "drained"),
    rounds=5,
)  # fmt: skip
