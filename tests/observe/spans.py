"""Spans of one process, and of another one that writes them down."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Holdfast
from holdfast.observe.otel import OtelObserver
from support.conditions import until


class Spans:
    """A tracer of its own, and what it made."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.observer = OtelObserver(MeterProvider(shutdown_on_exit=False).get_meter("test"), self.tracer, **options)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    async def first(self, name: str, count: int = 1) -> list[ReadableSpan]:
        await until(lambda: len(self.named(name)) >= count, what=f"{count} spans {name}")
        return self.named(name)

    def text(self) -> str:
        return json.dumps([json.loads(span.to_json()) for span in self._exporter.get_finished_spans()])


@contextlib.asynccontextmanager
async def working(hf: Holdfast) -> AsyncIterator[None]:
    async with hf:
        work = asyncio.get_running_loop().create_task(hf.work())
        try:
            yield
        finally:
            hf.stop_work()
            async with asyncio.timeout(15):
                await work


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def place(span: Any) -> tuple[int, int]:
    at = span.get_span_context()
    return at.trace_id, at.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]
