"""`/metrics`: what this process counts, and what the whole fleet reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from holdfast import HoldfastError
from holdfast.node.access import require
from holdfast.node.state import node_of

REACHED, PATIENCE = 2.0, 3.0
"""Seconds for a sign of life, and for measuring: Prometheus gives up after ten."""
STALE = 60.0
"""Seconds: what is older is not told as if it were so now."""
NAMES = {
    "holdfast_up": "1 while the server answers the node",
    "holdfast_buffer_users": "Users with something in a buffer",
    "holdfast_buffer_waiting_users_due": "Users whom a worker should look at now",
    "holdfast_buffer_oldest_seconds": "Since the oldest waiting message was appended",
    "holdfast_buffer_dead_letters": "Dead letters of a buffer",
    "holdfast_buffer_messages_total": "Messages by what became of them",
    "holdfast_runs_state": "Runs by state",
    "holdfast_monitor_backlog": "Changes that subscribers have not been told yet",
    "holdfast_monitor_dead_letters": "Dead letters of a monitor",
    "holdfast_processes": "Processes that reported in the last hour, by state",
    "holdfast_locks_held": "Locks in use",
    "holdfast_fleet_events_total": "What all processes of the fleet counted",
}
"""What the node adds to the metrics of `PrometheusObserver`."""

COUNTED = (
    "granted", "refused", "released", "lost", "expired", "taken_over", "renewed", "renew_failed", "forced", "appended",
    "taken", "redelivered", "acked", "absorbed", "nacked", "buried", "handler_failed", "lost_batches", "dropped",
    "nearly_full", "expiring", "runs_queued", "runs_taken", "runs_taken_over", "runs_completed", "runs_failed",
    "runs_stopped", "runs_returned", "runs_stuck", "runs_stop_asked", "lost_runs", "unique", "duplicate", "acquired",
    "rejected", "suppressed", "clock_jumped", "deliveries: delivered", "deliveries: failed", "deliveries: dead",
    "told: accepted", "observations: changed", "observations: first", "fetches: failed", "fetches: failing",
    "fetches: recovered", "observations: full", "outages: raise", "outages: allow", "outages: deny",
    "lost: expired", "lost: not renewed in time", "lost: taken away", "lost: forced", "lost: max_hold",
    "lost: abandoned",
    "dropped: age", "dropped: capacity", "dropped: bytes", "dropped: unreadable", "dropped: queue full",
    "dropped: gone before it was told", "dropped: refused by the store", "dropped: not archived in time",
)  # fmt: skip
"""There from the start, with 0: a rate does not see the first event of a series that begins with it."""


OUTCOMES = (
    "absorbed", "popped", "cleared", "forgotten", "dead", "replayed", "purged", "dropped.age", "dropped.capacity",
    "dropped.bytes", "dropped.dead", "dropped.pair_age", "dropped.pair_capacity", "batches", "redelivered", "vanished",
)  # fmt: skip
"""What may become of a message of a buffer; from the start too."""


def families(sample: dict[str, Any]) -> Iterator[Metric]:
    def gauge(name: str, labels: Iterable[str], rows: Iterable[tuple[list[str], float]]) -> Metric:
        family = GaugeMetricFamily(name, NAMES[name], labels=list(labels))
        for values, number in rows:
            family.add_metric(list(map(_label, values)), number)
        return family

    def counter(name: str, labels: list[str], rows: Iterable[tuple[list[str], float]]) -> Metric:
        family = CounterMetricFamily(name.removesuffix("_total"), NAMES[name], labels=labels)
        for values, number in rows:
            family.add_metric(list(map(_label, values)), number)
        return family

    buffers, monitors = sample["buffers"].items(), sample["monitors"].items()
    for name, part in (
        ("holdfast_buffer_users", "users"), ("holdfast_buffer_waiting_users_due", "due"),
        ("holdfast_buffer_dead_letters", "dead_letters"),
    ):  # fmt: skip
        yield gauge(name, ["buffer"], (([buffer], one[part]) for buffer, one in buffers))
    yield gauge("holdfast_buffer_oldest_seconds", ["buffer"], (([name], one["oldest"] or 0.0) for name, one in buffers))
    became = [(name, {**dict.fromkeys(OUTCOMES, 0), **one["counts"]}) for name, one in buffers]
    yield counter(
        "holdfast_buffer_messages_total", ["buffer", "outcome"],
        (([name, outcome], number) for name, counts in became for outcome, number in counts.items()),
    )  # fmt: skip
    yield gauge(
        "holdfast_runs_state", ["runs", "state"],
        (([name, state], number) for name, one in sample["runs"].items() for state, number in one.items()),
    )  # fmt: skip
    yield gauge(
        "holdfast_monitor_backlog", ["monitor"], (([name], sum(one["waiting"].values())) for name, one in monitors)
    )
    yield gauge("holdfast_monitor_dead_letters", ["monitor"], (([name], one["dead_letters"]) for name, one in monitors))
    yield gauge("holdfast_processes", ["state"], (([state], n) for state, n in sample["processes"].items()))
    yield gauge("holdfast_locks_held", [], [([], sample["locks"])])
    counts = {**dict.fromkeys(COUNTED, 0), **sample["totals"]}
    yield counter("holdfast_fleet_events_total", ["event"], (([name], counts[name]) for name in sorted(counts)))


def _label(text: str) -> str:
    """A name may hold what is no text."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Collected:
    """What was measured already, for the library that writes it down."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


async def metrics(request: Request) -> Response:
    """In the format of Prometheus. While the server cannot be asked, what this process itself has counted is told."""
    require(request, "read")
    node = node_of(request)
    fleet = CollectorRegistry()
    sample: dict[str, Any] = {}
    reached = False
    try:
        async with asyncio.timeout(REACHED):
            await node.hf.ping()
        reached = True
        async with asyncio.timeout(PATIENCE):
            sample = await node.sampler.fresh()
    except TimeoutError:  # where only measuring takes long, the last one will do
        sample = node.sampler.last(STALE) if reached else {}
    except HoldfastError:
        pass
    up = GaugeMetricFamily("holdfast_up", NAMES["holdfast_up"], value=float(reached))
    fleet.register(_Collected([up, *(families(sample) if sample else ())]))
    own = generate_latest(node.registry) if node.registry is not None else b""
    return Response(own + generate_latest(fleet), headers={"content-type": CONTENT_TYPE_LATEST})
