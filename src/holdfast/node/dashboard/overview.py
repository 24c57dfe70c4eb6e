"""The overview: what the fleet does right now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from holdfast.node.dashboard.charts import Chart, Line, Show
from holdfast.node.dashboard.site import Page, count_of
from holdfast.node.dashboard.text import number, seconds
from holdfast.node.state import node_of

SPANS = ((300, "5 min"), (900, "15 min"), (3600, "1 h"), (21_600, "6 h"), (172_800, "2 d"))
RATES = (
    ("Appended", ("appended",), "messages taken into buffers"),
    ("Absorbed", ("absorbed",), "messages that handlers have acknowledged"),
    ("Runs ended", ("runs_completed", "runs_failed", "runs_stopped"), "completed, failed or stopped"),
    ("Changes", ("observations: first", "observations: changed"), "states that differ from what was known"),
    ("Changes told", ("told: accepted",), "changes that subscribers have accepted"),
    ("Locks granted", ("granted",), "leases of mutexes, read/write locks and semaphores"),
)
"""Name, counters that are added up, and what they count."""
TIMES = (
    ("Lock wait", "wait", "from asking for a lock to having it"),
    ("Absorb", "absorb", "from taking a batch to its acknowledgement"),
    ("Run", "run", "from taking a run to its end"),
    ("Deliver", "deliver", "the attempt that a subscriber accepted"),
)
GAUGES: tuple[tuple[str, tuple[str, ...], Show, str], ...] = (
    ("Users waiting", ("users", "due"), number, "users with messages; users whom a worker should look at"),
    ("Oldest message", ("oldest",), seconds, "how long the oldest message of all buffers has waited"),
    ("Runs", ("runs.running", "runs.queued"), number, "running, and waiting to be run"),
    ("Locks in use", ("locks",), number, "held, or waited for"),
)
"""Name, what nodes have measured, how it is shown, and what it is."""
BRIDGED = 3
"""Pieces of time without a measurement that are drawn over: nodes take turns, and one may be late."""
LOSSES = (
    ("Leases lost", ("lost",), "a holder was too slow, or was ended"),
    ("Batches lost", ("lost_batches",), "handed out again"),
    ("Runs lost", ("lost_runs",), "taken over, or failed"),
    ("Redelivered", ("redelivered",), "batches that were handed out before"),
    ("Taken over", ("taken_over", "runs_taken_over"), "from an owner that was gone"),
    ("Handlers failed", ("handler_failed",), "raised, or took too long"),
    ("Renewals failed", ("renew_failed",), "no answer before the deadline"),
)
MOST_PROCESSES = 200


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that went wrong, how often in the time that is shown, and how often since ever."""

    name: str
    note: str
    recent: int
    ever: int


async def look(request: Request) -> dict[str, Any]:
    """Four questions to the server, whatever the number of users; the gauges are the node's last sample."""
    node = node_of(request)
    span = count_of(request, "span", 900, 60, 172_800)
    series = await node.hf.fleet.series(seconds=span)
    processes = await node.hf.fleet.processes(MOST_PROCESSES)
    totals = await node.hf.fleet.totals()
    sample = await node.sampler.fresh()
    slots = series.slots
    return {
        "page_title": "Overview", "now": series.now, "span": span, "spans": SPANS,
        "rates": [_rate(series.step, slots, *one[:2]) for one in RATES], "notes": [one[2] for one in RATES],
        "gauges": [_gauge(series.step, slots, *one[:3]) for one in GAUGES], "gauge_notes": [one[3] for one in GAUGES],
        "times": [_time(series.step, slots, *one[:2]) for one in TIMES], "time_notes": [one[2] for one in TIMES],
        "processes": sorted(processes, key=lambda one: (not one.alive, one.host, one.pid)),
        "sample": sample, "backlog": _backlog(sample), "run_states": _run_states(sample),
        "losses": [*_losses(slots, totals), *_drops(slots, totals)], "totals": totals,
        "held": sum(one.leases for one in processes if one.alive),
        "lost_recent": _risen(slots, ("lost", "lost_batches", "lost_runs")),
        "workers": sum(one.alive and bool(one.works) for one in processes),
        "alive": sum(one.alive for one in processes), "gone": sum(not one.alive for one in processes),
        "busy": any(totals.get(name) for _, names, _ in RATES for name in names),
    }  # fmt: skip


def _rate(step: float, slots: list[Any], title: str, names: tuple[str, ...]) -> Chart:
    # The last piece of time is not over: as a rate it would be a fall at the end of every chart.
    values = [sum(slot.counts.get(name, 0) for name in names) / step for slot in slots[:-1]]
    return Chart(title, "/s", (Line(title, values),), slots[0].at if slots else 0.0, step)


def _time(step: float, slots: list[Any], title: str, name: str) -> Chart:
    found = [slot.times.get(name) for slot in slots]
    lines = (
        Line("p99", [one.p99 if one and one.count else None for one in found]),
        Line("p50", [one.p50 if one and one.count else None for one in found]),
    )
    return Chart(title, "s", lines, slots[0].at if slots else 0.0, step, seconds)


def _gauge(step: float, slots: list[Any], title: str, names: tuple[str, ...], show: Show) -> Chart:
    lines = [Line(name.rpartition(".")[2], _bridged([slot.gauges.get(name) for slot in slots])) for name in names]
    return Chart(title, "s" if show is seconds else "", tuple(lines), slots[0].at if slots else 0.0, step, show)


def _bridged(values: list[float | None]) -> list[float | None]:
    """A gap of a few pieces has the value before it."""
    found: list[float | None] = []
    last, missing = None, 0
    for value in values:
        last, missing = (last, missing + 1) if value is None else (value, 0)
        found.append(last if missing <= BRIDGED else None)
    return found


def _risen(slots: list[Any], names: Iterable[str]) -> int:
    return sum(slot.counts.get(name, 0) for slot in slots for name in names)


def _losses(slots: list[Any], totals: dict[str, int]) -> list[Loss]:
    found = [
        Loss(name, note, _risen(slots, names), sum(totals.get(one, 0) for one in names)) for name, names, note in LOSSES
    ]
    return [one for one in found if one.ever]


def _drops(slots: list[Any], totals: dict[str, int]) -> list[Loss]:
    """By their reasons: each is a counter of its own."""
    found = []
    for name in sorted(totals):
        kind, _, reason = name.partition(": ")
        if kind in ("dropped", "lost") and reason and totals[name]:
            what = "Dropped" if kind == "dropped" else "Lease lost"
            found.append(Loss(f"{what}: {reason}", "by reason", _risen(slots, (name,)), totals[name]))
    return found


def _backlog(sample: dict[str, Any]) -> dict[str, Any]:
    buffers = sample.get("buffers", {}).values()
    ages = [one["oldest"] for one in buffers if one.get("oldest") is not None]
    return {
        "users": sum(one["users"] for one in buffers), "due": sum(one["due"] for one in buffers),
        "oldest": max(ages, default=None), "dead": sum(one["dead_letters"] for one in buffers)
        + sum(one["dead_letters"] for one in sample.get("monitors", {}).values()),
    }  # fmt: skip


def _run_states(sample: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for states in sample.get("runs", {}).values():
        for state, count in states.items():
            found[state] = found.get(state, 0) + count
    return found


PAGES = (Page("/", "overview.html", "", look, sampled=True),)
