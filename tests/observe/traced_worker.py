"""A worker in a process of its own: its spans go to stdout, one JSON object on a line."""

from __future__ import annotations

import asyncio
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from holdfast import Holdfast
from holdfast.observe.otel import OtelObserver


async def main(url: str) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    shown = ConsoleSpanExporter(out=sys.stdout, formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(SimpleSpanProcessor(shown))
    async with Holdfast(url, observers=[OtelObserver(tracer=provider.get_tracer("worker"))]) as hf:

        @hf.absorber(hf.buffer("inbox"), threshold=1)
        async def remember(batch: object) -> None:
            hf.stop_work()

        await hf.work()


asyncio.run(main(sys.argv[1]))
