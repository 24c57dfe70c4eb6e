"""Server-Sent Events as a browser reads them, as far as the tests need that."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx


class Sent(NamedTuple):
    """One event; a comment has the kind `:`."""

    kind: str
    data: Any = None
    id: str = ""


@contextlib.asynccontextmanager
async def reading(client: httpx.AsyncClient, path: str, **options: Any) -> AsyncIterator[AsyncIterator[Sent]]:
    """The events of a stream that has begun well. Leaving disconnects."""
    async with client.stream("GET", path, **options) as reply:
        assert reply.status_code == 200, await reply.aread()
        yield parse(reply)


async def parse(reply: httpx.Response) -> AsyncIterator[Sent]:
    fields: dict[str, str] = {}
    async for line in reply.aiter_lines():
        name, _, value = line.partition(":")
        if line.startswith(":"):
            yield Sent(":", value.strip())
        elif name == "retry":
            yield Sent("retry", int(value))
        elif line:
            fields[name] = value.strip()
        elif fields:
            yield Sent(fields["event"], json.loads(fields["data"]), fields["id"])
            fields = {}


async def all_of(client: httpx.AsyncClient, path: str, **options: Any) -> list[Sent]:
    """The events until the server ends the stream, without retry and comments."""
    async with reading(client, path, **options) as events:
        return [event async for event in events if event.kind not in ("retry", ":")]
