"""Events as OpenTelemetry: marks on the current span, and metrics. Needs `holdfast[otel]`."""

from __future__ import annotations

from opentelemetry import metrics, trace

from holdfast.events import Event, Granted, Lost, Refused, Released, RenewFailed, TakenOver


class OtelObserver:
    """What happens to a lease inside a span is recorded there; counts and times go to the meter."""

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter("holdfast")
        self._acquired = meter.create_counter("holdfast.acquire", description="Attempts to acquire, by outcome")
        self._wait = meter.create_histogram("holdfast.wait", unit="s", description="From asking to the grant")
        self._hold = meter.create_histogram("holdfast.hold", unit="s", description="From the grant to its end")
        self._lost = meter.create_counter("holdfast.lost", description="Leases lost, by reason")
        self._taken = meter.create_counter("holdfast.takeovers", description="Expired leases taken over")
        self._failed = meter.create_counter("holdfast.renewals.failed", description="Renewals without an answer")

    def __call__(self, event: Event) -> None:
        span = trace.get_current_span()
        if span.is_recording():
            attributes = {
                f"holdfast.{key}": value
                for key, value in event.as_dict().items()
                if isinstance(value, (str, int, float))
            }
            span.add_event(f"holdfast.{type(event).__name__.lower()}", attributes)
        match event:
            case Granted(waited=waited):
                self._acquired.add(1, {"outcome": "granted"})
                self._wait.record(waited)
            case Refused():
                self._acquired.add(1, {"outcome": "refused"})
            case Released(held=held):
                self._hold.record(held)
            case Lost(held=held, reason=reason):
                self._hold.record(held)
                self._lost.add(1, {"reason": reason})
            case TakenOver():
                self._taken.add(1)
            case RenewFailed():
                self._failed.add(1)
