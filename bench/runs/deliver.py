"""From `emit` in one process to readers in another: how long it takes, and what 1 000 readers read from the server."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..report import number
from ..wiretap import WireTap

READERS = (1, 1_000)
EVENTS, COUNTED, QUICK, PACE_MS = 200, 100, 30, 50.0
LIMIT = 120.0
NOW, GATHERED = "Holdfast, emit_delay 0", "Holdfast, emit_delay as it is"
MOST = 1.1


def contestants() -> Iterable[Contestant]:
    version = importlib.metadata.version("holdfast")
    yield Contestant(NOW, "0", version, ours=True)
    yield Contestant(GATHERED, "default", version, ours=True)


def turn(who: Contestant, now: Turn) -> Figures:
    figures: Figures = {}
    for readers in READERS:
        now.server.reset()
        events = QUICK if now.quick else EVENTS
        report, _ = _run(who, now, now.server.addr, readers, events, lambda: 0)
        figures |= {f"p50_{readers}": report["p50"], f"p99_{readers}": report["p99"]}
        now.server.reset()
        events = QUICK if now.quick else COUNTED
        with WireTap(now.server.port) as tap:
            _, (opening, following) = _run(who, now, tap.addr, readers, events, lambda tap=tap: tap.answered)  # type: ignore[misc]
        figures |= {f"bytes_{readers}": following / events, f"opening_{readers}": float(opening)}
    one, many = (figures[f"bytes_{readers}"] for readers in READERS)
    return {**figures, "bytes_ratio": many / one}


def _run(
    who: Contestant, now: Turn, reader_addr: str, readers: int, events: int, look: Callable[[], int]
) -> tuple[dict[str, Any], tuple[int, int]]:
    """The readers' report; and the growth of the counter until all readers had begun, and from then to the end."""
    module = [sys.executable, "-m", "bench.runs.deliver_worker"]
    emitting = [*module, "emit", now.server.addr, who.lib, str(events), str(PACE_MS)]
    reading = [*module, "read", reader_addr, str(readers)]
    with contextlib.ExitStack() as stack:
        (emitter,) = stack.enter_context(fleet.started([emitting]))
        (reader,) = stack.enter_context(fleet.started([reading]))
        stack.enter_context(fleet.limited([emitter, reader], LIMIT, "delivering all events"))
        begun = look()
        emitter.say_go()
        emitter.line()
        report = json.loads(reader.line())
        counted = (begun, look() - begun)
    if report["least"] != events or report["most"] != events:
        raise fleet.WorkerFailed(f"readers got {report['least']} to {report['most']} of {events} events")
    return report, counted


def bars(results: Results) -> list[Bar]:
    made = []
    for ours in (NOW, GATHERED):
        for readers in READERS:
            for key in ("p50", "p99"):
                known = results.values(ours, f"{key}_{readers}")
                shown = f"{number(results.median(ours, f'{key}_{readers}'), 2)} ms" if known else ""
                made.append(Bar(f"{ours}, {_of(readers)}: {key} from emit to reader", "reported", shown, None))
        known = results.values(ours, "bytes_ratio")
        ratio = results.median(ours, "bytes_ratio")
        what = f"{ours}: bytes for {_of(READERS[1])} over those for {_of(READERS[0])}"
        made.append(Bar(what, f"≤ {MOST}", f"{ratio:.2f}" if known else "", ratio <= MOST if known else None))
    return made


def _of(readers: int) -> str:
    return f"{readers} reader" + ("s" if readers > 1 else "")


def _metrics() -> Iterable[Metric]:
    for readers in READERS:
        for key in ("p50", "p99"):
            yield Metric(f"{key}_{readers}", f"{key},\n{_of(readers)}", "ms", 2, higher_is_better=False)
    for readers in READERS:
        yield Metric(f"bytes_{readers}", f"read per event,\n{_of(readers)}", "bytes", 0, higher_is_better=False)
    yield Metric(f"opening_{READERS[1]}", f"read to begin,\n{_of(READERS[1])}", "bytes", 0, higher_is_better=False)


SCENARIO = Scenario(
    name="deliver",
    title="one run emits an event every 50 ms; readers of it in another process, 1 and 1 000",
    how=(
        "Timed from just before `emit` in one process to the reader's line in the other, on the machine's monotonic "
        "clock; with 1 000 readers every one of them counts. All readers have begun before. Bytes are what the server "
        "sends to the readers' process, counted on the wire in a run of its own, per event and without what it takes "
        "to begin, which has a column of its own. (--quick: 30 events, else 200, and 100 to count bytes.)"
    ),
    metrics=tuple(_metrics()),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("p50_1", "p99_1", "p50_1000", "p99_1000"),
    log_scale=frozenset({"p50_1", "p99_1", "p50_1000", "p99_1000"}),
    rounds=3,
)
