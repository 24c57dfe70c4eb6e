"""The same work over the library and over the node's HTTP API, and over a route that does nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import Iterable, Iterator

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..once.gate_worker import AT_ONCE
from ..once.phases import ratio_bar, run
from .api_worker import CALLERS
from .processes import node, versions

LIBRARY, API, BARE = "library", "HTTP API", "bare Starlette route"
EACH = {"append": 1, "items": AT_ONCE, "once": 1, "lock": 1, "observe": AT_ONCE}
WHAT = {
    "append": "append of one message", "items": "append of 100 in one request", "once": "once",
    "lock": "lock, acquire and release", "observe": "observe of 100",
}  # fmt: skip
PHASES = {f"{name}_{callers}": f"{name}:{callers}" for name in EACH for callers in (1, CALLERS)}
OF_BARE = {key: phase for key, phase in PHASES.items() if key.endswith(f"_{CALLERS}") or key in ("append_1", "lock_1")}


def contestants() -> Iterable[Contestant]:
    yield Contestant(LIBRARY, "library", importlib.metadata.version("holdfast"), ours=True)
    yield Contestant(API, "api", versions(), ours=True)
    yield Contestant(BARE, "bare", versions().partition(", ")[2])


def turn(who: Contestant, now: Turn) -> Figures:
    figures: Figures = {}
    phases = OF_BARE if who.name == BARE else PHASES
    with _target(who, now) as target:
        done = run(now, [sys.executable, "-m", "bench.node.api_worker", target], list(phases.values()))
    for (key, phase), one in zip(phases.items(), done, strict=True):
        name, _, callers = phase.partition(":")
        one.must_answer(1, f"right answers, {phase}")
        figures |= {key: one.per_second(EACH[name]), f"{key}_us": one.server_us(EACH[name])}
        if callers == "1":
            figures |= {f"{key}_p50": one.p50, f"{key}_p99": one.p99}
    return figures


@contextlib.contextmanager
def _target(who: Contestant, now: Turn) -> Iterator[str]:
    if who.lib == "library":
        yield who.lib
    elif who.lib == "api":
        with node("--url", f"redis://{now.server.addr}") as running:
            yield f"{who.lib}:{running.port}"
    else:
        with fleet.started([[sys.executable, "-m", "bench.node.bare"]]) as (worker,):
            yield f"{who.lib}:{worker.line()}"


def bars(results: Results) -> list[Bar]:
    made = []
    for name, what in WHAT.items():
        for callers in (CALLERS, 1):
            of = f"{what}, {callers} caller" + ("s" if callers > 1 else "")
            made.append(ratio_bar(results, API, f"{name}_{callers}", LIBRARY, f"{of},"))
    for name in ("append", "lock", "observe"):
        made.append(ratio_bar(results, API, f"{name}_{CALLERS}", BARE, f"{WHAT[name]}, {CALLERS} callers,"))
    return made


SCENARIO = Scenario(
    name="api",
    title="the same work over the library and over HTTP, 1 and 32 callers in one process",
    how=(
        "HTTP: one connection with keep-alive for each caller, a lean client on asyncio's sockets (no HTTP library), "
        "requests of about 100 bytes; a hundred messages or states are 6 to 13 kB. A lock is two requests. The node is "
        "`holdfast up --url` in a process of its own, with its defaults, except that its limit of requests is out of "
        "the way. Client, node and server share the machine's cores; with the library there is no node to share with. "
        "The bare route reads the same requests from the same client and answers {}, on the same HTTP server. Messages "
        "and states per second where a request has a hundred. Every answer is looked at, but for the bare route's."
    ),
    metrics=(
        Metric(f"append_{CALLERS}", f"append,\n{CALLERS} callers", "per s", 0),
        Metric(f"items_{CALLERS}", f"messages,\n100 each,\n{CALLERS} callers", "per s", 0),
        Metric(f"once_{CALLERS}", f"once,\n{CALLERS} callers", "per s", 0),
        Metric(f"lock_{CALLERS}", f"lock cycle,\n{CALLERS} callers", "per s", 0),
        Metric(f"observe_{CALLERS}", f"states,\n100 each,\n{CALLERS} callers", "per s", 0),
        Metric("append_1_p50", "append,\n1 caller, p50", "µs", 0, higher_is_better=False),
        Metric("lock_1_p50", "lock cycle,\n1 caller, p50", "µs", 0, higher_is_better=False),
    ),
    contestants=contestants,
    turn=turn,
    bars=bars,
    ratio=(f"append_{CALLERS}", LIBRARY),
    plots=(f"append_{CALLERS}", f"items_{CALLERS}", f"lock_{CALLERS}", f"observe_{CALLERS}"),
    rounds=3,
    seconds=0.25,
)
