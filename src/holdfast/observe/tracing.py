"""Spans around what handlers do, joined to the spans in which it was asked for. Needs `holdfast[otel]`.

A span that is open where something is appended, started or observed is written beside the data, as a W3C traceparent.
Whoever handles it, in whichever process, has a span of the same trace; or, where it came from several, links to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

MOST_LINKS = 128
"""As many as OpenTelemetry keeps."""
_KINDS = {"absorb": SpanKind.CONSUMER, "run": SpanKind.CONSUMER, "deliver": SpanKind.CLIENT}


class SpanMaker:
    """Made by `OtelObserver`; found by the client as its `tracing`. Nothing here raises: a trace is worth less than
    what it is a trace of."""

    def __init__(self, tracer: trace.Tracer | None, *, carry: bool) -> None:
        self._tracer = tracer or trace.get_tracer("holdfast")
        self._carry = carry
        self._complained = False

    def current(self) -> str:
        """The W3C traceparent of the span that is open here. Empty: none is, or it is not to be carried."""
        if not self._carry:
            return ""
        try:
            at = trace.get_current_span().get_span_context()
            return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}" if at.is_valid else ""
        except Exception:
            self._complain()
            return ""

    @contextlib.contextmanager
    def span(
        self, name: str, traces: Iterable[str | None], attributes: Mapping[str, object], *, beside: bool = False
    ) -> Iterator[Callable[[str], None]]:
        """A span while this is entered. What is entered takes the kind of an error; nothing: there was none.
        `beside`: it is linked to the span that is open here, or part of it unless there is one trace to be part of.

        The kind of error is all that is recorded of it: its text may be what a user wrote."""
        span = self._start(name, traces, attributes, beside)
        token = attach(trace.set_span_in_context(span))
        kind = ""

        def failed(error: str) -> None:
            nonlocal kind
            kind = error

        try:
            yield failed
        except BaseException as error:
            # Cancelled, this process is ending, and hands over what it does.
            kind = "" if isinstance(error, asyncio.CancelledError) else type(error).__name__
            raise
        finally:
            detach(token)
            self._end(span, kind)

    def _start(self, name: str, traces: Iterable[str | None], attributes: Mapping[str, object], beside: bool) -> Span:
        try:
            came_from = [found for one in dict.fromkeys(traces) if one and (found := read(one)).is_valid]
            here = trace.get_current_span().get_span_context() if beside else trace.INVALID_SPAN_CONTEXT
            parent = came_from[0] if len(came_from) == 1 else here
            links = [Link(one) for one in (*came_from, here) if one.is_valid and one.span_id != parent.span_id]
            context = trace.set_span_in_context(NonRecordingSpan(parent), Context()) if parent.is_valid else Context()
            shown = {f"holdfast.{key}": plain(value) for key, value in attributes.items()}
            return self._tracer.start_span(
                name, context, _KINDS.get(name, SpanKind.INTERNAL), shown, links[:MOST_LINKS],
                record_exception=False, set_status_on_exception=False,
            )  # fmt: skip
        except Exception:
            self._complain()
            return trace.INVALID_SPAN

    def _end(self, span: Span, kind: str) -> None:
        try:
            if kind:
                span.set_attribute("error.type", kind)
                span.set_status(Status(StatusCode.ERROR, kind))
            span.end()
        except Exception:
            self._complain()

    def _complain(self) -> None:
        if not self._complained:
            self._complained = True
            logging.getLogger("holdfast").exception("a span could not be made; the next failures are not told")


def read(traceparent: str) -> SpanContext:
    """Of another process; not valid where it makes no sense."""
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


def plain(value: Any) -> Any:
    """Text that exporters can carry: ids may hold half a character."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
