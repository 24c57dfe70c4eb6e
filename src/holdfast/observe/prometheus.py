"""Events as Prometheus metrics. Needs `holdfast[prometheus]`.

Names of locks, users, batches, runs and sessions are not labels: there may be one for each user, and a label value
stays for ever. `Buffer.totals` has the numbers of each buffer, `Runs.totals` those of runs.
"""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from holdfast.events import (
    Acked,
    Buried,
    ClockJumped,
    Delivered,
    Dropped,
    Event,
    Expired,
    Expiring,
    Forced,
    Granted,
    HandlerFailed,
    Lost,
    Nacked,
    NearlyFull,
    Refused,
    Released,
    Renewed,
    RenewFailed,
    RunFinished,
    RunQueued,
    RunReturned,
    RunStuck,
    RunTaken,
    ServerWarning,
    Taken,
    TakenOver,
)
from holdfast.observe.outcomes import KINDS, outcomes

_KNOWN = {
    "acquire": ("granted", "refused"),
    "lost": ("expired", "not renewed in time", "taken away", "forced", "max_hold", "abandoned", "forked"),
    "renewals": ("renewed", "failed"),
    "alerts": ("nearly full", "expiring"),
    "batches": ("taken", "taken again", "acknowledged", "given back", "buried", "failed", "lost"),
    "runs": (
        "queued", "taken", "taken again", "completed", "failed", "stopped", "handed back", "stuck", "lost",
    ),
    "ids": ("unique", "duplicate"),
    "claims": ("acquired", "rejected", "duplicate", "lost"),
    "states": ("first", "changed", "suppressed", "unchanged"),
    "outages": ("raise", "allow", "deny"),
    "observations": ("first", "changed", "suppressed", "unchanged", "older", "full"),
    "deliveries": ("delivered", "failed", "dead"),
    "fetches": ("first", "changed", "unchanged", "older", "failed", "failing", "recovered"),
    "told": ("accepted",),
}  # fmt: skip
_DROPPED = {
    "message": ("age", "capacity", "bytes", "unreadable"),
    "conversation pair": ("age", "capacity", "unreadable"),
    "session entry": ("entries", "bytes", "tokens", "orphan", "unreadable", "newer"),
    "change": ("queue full", "gone before it was told", "unreadable"),
    "dead letter": ("capacity",),
    "history": ("refused by the store",),
    "push log": ("capacity",),
    "run": ("not archived in time",),
    "run event": ("capacity",),
}
"""These are there with 0 from the start: `increase()` does not see the first event of a series that begins with it."""
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)


class PrometheusObserver:
    """`Holdfast(url, observers=[PrometheusObserver()])`. One for a process: metric names are unique in a registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._acquired = Counter(
            "holdfast_acquire_total", "Attempts to acquire, by outcome", ["outcome"], registry=registry
        )
        self._wait = Histogram("holdfast_wait_seconds", "From asking to the grant", registry=registry, buckets=_BUCKETS)
        self._hold = Histogram(
            "holdfast_hold_seconds", "From the grant to its end", registry=registry, buckets=_BUCKETS
        )
        self._held = Gauge("holdfast_leases_held", "Leases held by this process now", registry=registry)
        self._lost = Counter("holdfast_lost_total", "Leases lost, by reason", ["reason"], registry=registry)
        self._taken = Counter("holdfast_takeovers_total", "Expired leases taken over", registry=registry)
        self._expired = Counter("holdfast_expired_total", "Leases found expired on the server", registry=registry)
        self._renewed = Counter("holdfast_renewals_total", "Renewals, by outcome", ["outcome"], registry=registry)
        self._forced = Counter("holdfast_forced_total", "Leases ended by an operator", registry=registry)
        self._dropped = Counter("holdfast_dropped_total", "Discarded, by reason", ["what", "reason"], registry=registry)
        self._jumps = Counter("holdfast_clock_jumps_total", "Jumps of the server's clock", registry=registry)
        self._batches = Counter(
            "holdfast_batches_total", "What happened to batches, by outcome", ["outcome"], registry=registry
        )
        self._absorbed = Counter("holdfast_absorbed_total", "Messages acknowledged", registry=registry)
        self._absorb = Histogram(
            "holdfast_absorb_seconds", "From taking a batch to its acknowledgement", registry=registry, buckets=_BUCKETS
        )
        self._runs = Counter("holdfast_runs_total", "What happened to runs, by outcome", ["outcome"], registry=registry)
        self._run_time = Histogram(
            "holdfast_run_seconds", "From taking a run to its end here", registry=registry, buckets=_BUCKETS
        )
        self._owned = Gauge("holdfast_runs_owned", "Runs owned by this process now", registry=registry)
        self._alerts = Counter("holdfast_alerts_total", "Buffers near a bound, by kind", ["kind"], registry=registry)

        self._counted = {
            kind: Counter(f"holdfast_{kind}_total", text, ["outcome"], registry=registry)
            for kind, text in KINDS.items()
        }
        self._delivery = Histogram(
            "holdfast_delivery_seconds", "What the accepted attempt of a delivery took", registry=registry,
            buckets=_BUCKETS,
        )  # fmt: skip
        self._warnings = Counter(
            "holdfast_warnings_total", "Warnings about the server or of what works in the background", registry=registry
        )
        self._begin()

    def _begin(self) -> None:
        single = {
            "acquire": self._acquired, "lost": self._lost, "renewals": self._renewed, "alerts": self._alerts,
            "batches": self._batches, "runs": self._runs, **self._counted,
        }  # fmt: skip
        for name, values in _KNOWN.items():
            for value in values:
                single[name].labels(value)
        for what, reasons in _DROPPED.items():
            for reason in reasons:
                self._dropped.labels(what, reason)

    def __call__(self, event: Event) -> None:
        counted = outcomes(event)
        if counted:
            for kind, outcome, number in counted:
                self._counted[kind].labels(outcome).inc(number)
            if isinstance(event, Delivered):
                self._delivery.observe(event.seconds)
        else:
            self._lease(event)

    def _lease(self, event: Event) -> None:
        match event:
            case Granted(waited=waited, handed_on=handed_on):
                self._acquired.labels("granted").inc()
                self._wait.observe(waited)
                self._held.inc(not handed_on)
            case Refused():
                self._acquired.labels("refused").inc()
            case Released(held=held):
                self._hold.observe(held)
                self._held.dec()
            case Lost(what="run") | RunQueued() | RunTaken() | RunFinished() | RunReturned() | RunStuck():
                self._run(event)
            case Lost(what="batch"):
                self._batches.labels("lost").inc()
            case Lost(held=held, reason=reason):
                self._hold.observe(held)
                self._held.dec()
                self._lost.labels(reason).inc()
            case TakenOver():
                self._taken.inc()
            case Expired(count=count):
                self._expired.inc(count)
            case Renewed():
                self._renewed.labels("renewed").inc()
            case RenewFailed():
                self._renewed.labels("failed").inc()
            case Forced(ended=ended):
                self._forced.inc(ended)
            case _:
                self._buffer(event)

    def _run(self, event: Event) -> None:
        match event:
            case RunQueued():
                self._runs.labels("queued").inc()
            case RunTaken(attempt=attempt):
                self._runs.labels("taken" if attempt == 1 else "taken again").inc()
                self._owned.inc()
            case RunFinished(state=state, held=held):
                self._runs.labels(state).inc()
                self._run_time.observe(held)
                self._owned.dec()
            case RunReturned():
                self._runs.labels("handed back").inc()
                self._owned.dec()
            case RunStuck():
                self._runs.labels("stuck").inc()
            case _:
                self._runs.labels("lost").inc()
                self._owned.dec()

    def _buffer(self, event: Event) -> None:
        match event:
            case Taken(attempt=attempt):
                self._batches.labels("taken" if attempt == 1 else "taken again").inc()
            case Acked(messages=messages, held=held):
                self._batches.labels("acknowledged").inc()
                self._absorbed.inc(messages)
                self._absorb.observe(held)
            case Nacked():
                self._batches.labels("given back").inc()
            case Buried():
                self._batches.labels("buried").inc()
            case HandlerFailed():
                self._batches.labels("failed").inc()
            case Dropped(what=what, reason=reason, count=count):
                self._dropped.labels(what, reason).inc(count)
            case NearlyFull():
                self._alerts.labels("nearly full").inc()
            case Expiring():
                self._alerts.labels("expiring").inc()
            case ClockJumped():
                self._jumps.inc()
            case ServerWarning():
                self._warnings.inc()
