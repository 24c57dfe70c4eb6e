"""Events as OpenTelemetry: spans, marks on the current span, and metrics. Needs `holdfast[otel]`."""

from __future__ import annotations

from opentelemetry import metrics, trace

from holdfast.events import (
    Acked,
    Buried,
    Dropped,
    Event,
    Granted,
    HandlerFailed,
    Lost,
    Nacked,
    Refused,
    Released,
    RenewFailed,
    RunFinished,
    RunQueued,
    RunReturned,
    RunStuck,
    RunTaken,
    Taken,
    TakenOver,
)
from holdfast.observe.logs import without_texts
from holdfast.observe.outcomes import KINDS, outcomes
from holdfast.observe.tracing import SpanMaker, plain

_OUTCOMES: dict[type[Event], str] = {
    Taken: "taken", Acked: "acknowledged", Nacked: "given back", Buried: "buried", HandlerFailed: "failed",
}  # fmt: skip


_RUNS: dict[type[Event], str] = {
    RunQueued: "queued", RunTaken: "taken", RunReturned: "handed back", RunStuck: "stuck",
}  # fmt: skip


class OtelObserver:
    """What happens to a lease, a batch or a run inside a span is recorded there; counts and times go to the meter.

    There is a span around what each handler of an absorber (`absorb`) or a runner (`run`) does, and around each
    delivery to a subscriber (`deliver`). With `carry`, the span that is open where something is appended, started or
    observed goes with it: it is the parent of the span in which that is handled, in whichever process, or linked to it
    where a batch came from several. Such data is written in a format of its own, which older versions do not read: let
    every worker have this version before you turn tracing on. `carry=False` writes as before.

    Spans and their events have the names of locks, users, batches and runs; metrics do not. Data is in none of them,
    and of an exception only its kind: its text may be data."""

    def __init__(
        self, meter: metrics.Meter | None = None, tracer: trace.Tracer | None = None, *, carry: bool = True
    ) -> None:
        self.tracing = SpanMaker(tracer, carry=carry)
        meter = meter or metrics.get_meter("holdfast")
        self._acquired = meter.create_counter("holdfast.acquire", description="Attempts to acquire, by outcome")
        self._wait = meter.create_histogram("holdfast.wait", unit="s", description="From asking to the grant")
        self._hold = meter.create_histogram("holdfast.hold", unit="s", description="From the grant to its end")
        self._lost = meter.create_counter("holdfast.lost", description="Leases lost, by reason")
        self._taken = meter.create_counter("holdfast.takeovers", description="Expired leases taken over")
        self._failed = meter.create_counter("holdfast.renewals.failed", description="Renewals without an answer")
        self._batches = meter.create_counter("holdfast.batches", description="What happened to batches, by outcome")
        self._absorb = meter.create_histogram("holdfast.absorb", unit="s", description="From taking to acknowledging")
        self._runs = meter.create_counter("holdfast.runs", description="What happened to runs, by outcome")
        self._run_time = meter.create_histogram("holdfast.run", unit="s", description="From taking a run to its end")
        self._dropped = meter.create_counter("holdfast.dropped", description="Discarded, by what and reason")
        self._counted = {
            kind: meter.create_counter(f"holdfast.{kind}", description=text) for kind, text in KINDS.items()
        }

    def __call__(self, event: Event) -> None:
        span = trace.get_current_span()
        if span.is_recording():
            attributes = {
                f"holdfast.{key}": plain(value)
                for key, value in without_texts(event).items()
                if isinstance(value, (str, int, float))
            }
            span.add_event(f"holdfast.{type(event).__name__.lower()}", attributes)
        counted = outcomes(event)
        for kind, outcome, number in counted:
            self._counted[kind].add(number, {"outcome": outcome})
        if not counted:
            self._measure(event)

    def _measure(self, event: Event) -> None:
        match event:
            case Granted(waited=waited):
                self._acquired.add(1, {"outcome": "granted"})
                self._wait.record(waited)
            case Refused():
                self._acquired.add(1, {"outcome": "refused"})
            case Released(held=held):
                self._hold.record(held)
            case Lost(what="batch"):
                self._batches.add(1, {"outcome": "lost"})
            case Lost(what="run") | RunFinished():
                self._run(event)
            case Lost(held=held, reason=reason):
                self._hold.record(held)
                self._lost.add(1, {"reason": reason})
            case TakenOver():
                self._taken.add(1)
            case RenewFailed():
                self._failed.add(1)
            case Dropped(what=what, reason=reason, count=count):
                self._dropped.add(count, {"what": what, "reason": reason})
            case _:
                self._count(event)

    def _count(self, event: Event) -> None:
        if type(event) in _RUNS:
            self._runs.add(1, {"outcome": _RUNS[type(event)]})
        elif type(event) in _OUTCOMES:
            self._batches.add(1, {"outcome": _OUTCOMES[type(event)]})
            if isinstance(event, Acked):
                self._absorb.record(event.held)

    def _run(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            self._runs.add(1, {"outcome": event.state})
            self._run_time.record(event.held)
        else:
            self._runs.add(1, {"outcome": "lost"})
