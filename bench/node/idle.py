"""What a node with nothing to do needs: memory and processor time of its processes, with and without a playground."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..report import number
from .processes import Node, children, cpu_seconds, memory, node, parent, versions

NAME = "holdfast up"
SETTLE, SECONDS = 10.0, 20.0
QUICK = (3.0, 3.0)


def contestants() -> Iterable[Contestant]:
    yield Contestant(NAME, "holdfast", versions(), ours=True)


def turn(who: Contestant, now: Turn) -> Figures:
    settle, seconds = QUICK if now.quick else (SETTLE, SECONDS)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(node())
        playing = stack.enter_context(node("--playground"))
        (bare,) = stack.enter_context(fleet.started([[sys.executable, "-m", "bench.node.bare"]]))
        time.sleep(settle)
        groups = {**_processes(plain, ""), **_processes(playing, "playing_"), "bare": [bare.process.pid]}
        before = {name: sum(map(cpu_seconds, pids)) for name, pids in groups.items()}
        begun = time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - begun
        figures: Figures = {}
        for name, pids in groups.items():
            used = memory(*pids)
            figures[f"{name}_cpu"] = (sum(map(cpu_seconds, pids)) - before[name]) / elapsed * 100
            figures |= {f"{name}_rss": used.rss, f"{name}_pss": used.pss}
    for kind, parts in (("", ("node", "server", "watcher")), ("playing_", ("node", "server", "watcher", "workers"))):
        for what in ("pss", "cpu"):
            figures[f"{kind}all_{what}"] = sum(figures[f"{kind}{part}_{what}"] for part in parts)
    return figures


def _processes(running: Node, kind: str) -> dict[str, list[int]]:
    """The node, the embedded server with its watcher, which are nobody's children, and the workers."""
    server = int((running.data / "server.pid").read_text())
    found = {"node": [running.pid], "server": [server], "watcher": [parent(server)]}
    if kind:
        found["workers"] = [pid for pid in children(running.pid) if pid not in (server, parent(server))]
        if not found["workers"]:
            raise fleet.WorkerFailed("the playground has no worker")
    return {f"{kind}{name}": pids for name, pids in found.items()}


def bars(results: Results) -> list[Bar]:
    made = []
    for key, what, unit, digits in (
        ("node_rss", "the node's process, RSS", "MB", 1),
        ("node_pss", "the node's process, PSS", "MB", 1),
        ("server_pss", "the embedded server, PSS", "MB", 1),
        ("all_pss", "node, server and watcher, PSS", "MB", 1),
        ("playing_workers_pss", "the worker of the playground, PSS", "MB", 1),
        ("playing_all_pss", "all with the playground, PSS", "MB", 1),
        ("all_cpu", "node, server and watcher, CPU", "% of a core", 2),
        ("playing_all_cpu", "all with the playground, CPU", "% of a core", 2),
        ("bare_pss", "a bare Starlette route, PSS (control)", "MB", 1),
    ):
        known = results.values(NAME, key)
        reached = f"{number(results.median(NAME, key), digits)} {unit}" if known else ""
        made.append(Bar(f"idle: {what}", "reported", reached, None))
    return made


SCENARIO = Scenario(
    name="idle-node",
    title="an idle node with its embedded server, with and without a playground, after 30 s",
    how=(
        "`holdfast up` and `holdfast up --playground`, side by side, each with a data directory of its own and nobody "
        "who asks. After 10 s processor time is counted for 20 s; then memory is read from /proc/PID/smaps_rollup. "
        "RSS counts what processes share in each of them, PSS in equal parts; PSS can be added up. The watcher ends "
        "the embedded server with its last user. The playground has one worker process. The control is uvicorn with "
        "a Starlette route that does nothing. (--quick: 3 s and 3 s.)"
    ),
    metrics=(
        Metric("node_rss", "node,\nRSS", "MB", 1, higher_is_better=False),
        Metric("node_pss", "node,\nPSS", "MB", 1, higher_is_better=False),
        Metric("server_rss", "server,\nRSS", "MB", 1, higher_is_better=False),
        Metric("server_pss", "server,\nPSS", "MB", 1, higher_is_better=False),
        Metric("playing_workers_rss", "playground\nworker, RSS", "MB", 1, higher_is_better=False),
        Metric("playing_workers_pss", "playground\nworker, PSS", "MB", 1, higher_is_better=False),
        Metric("bare_pss", "bare\nStarlette,\nPSS", "MB", 1, higher_is_better=False),
        Metric("node_cpu", "node,\nCPU", "% of a core", 2, higher_is_better=False),
        Metric("server_cpu", "server,\nCPU", "% of a core", 2, higher_is_better=False),
        Metric("playing_workers_cpu", "playground\nworker, CPU", "% of a core", 2, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    rounds=1,
)
