"""Events as Prometheus metrics. Needs `holdfast[prometheus]`.

Lock names are not labels: there may be one for each user, and a label value stays for ever.
"""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from holdfast.events import (
    ClockJumped,
    Dropped,
    Event,
    Expired,
    Forced,
    Granted,
    Lost,
    Refused,
    Released,
    Renewed,
    RenewFailed,
    TakenOver,
)

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

    def __call__(self, event: Event) -> None:
        match event:
            case Granted(waited=waited):
                self._acquired.labels("granted").inc()
                self._wait.observe(waited)
                self._held.inc()
            case Refused():
                self._acquired.labels("refused").inc()
            case Released(held=held):
                self._hold.observe(held)
                self._held.dec()
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
            case Dropped(what=what, reason=reason, count=count):
                self._dropped.labels(what, reason).inc(count)
            case ClockJumped():
                self._jumps.inc()
