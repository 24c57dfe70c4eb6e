"""The events of a run as Server-Sent Events, for Starlette and FastAPI.

@app.get("/runs/{run_id}/events")
async def events(run_id: str, request: Request) -> Response:
    return await event_stream(agent, run_id, request)
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from holdfast import ConfigurationError, Event, Indeterminate, InvalidId, RunGone, Runs, Unavailable

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.types import Send
except ImportError:
    raise ConfigurationError("pip install '.[starlette]' in Holdfast's clone to use this adapter") from None

EVENT_ID = re.compile(r"([0-9]{1,15})-([0-9]{1,10})")
HEADERS = {
    "Cache-Control": "no-cache, no-transform",  # a proxy that compresses holds events back
    "X-Accel-Buffering": "no",  # and so does nginx
}

NO_LINES = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""No line ends for the protocol, but for clients that split text as Python does. JSON has escapes for them."""


async def event_stream(
    runs: Runs, run_id: str, request: Request, *, keep_alive: float = 15.0, retry: float = 2.0, reasons: bool = False
) -> Response:
    """A response with each event of the run after the last that the client has seen, until its `end`.

    An event has the lines `id`, `event` (its kind) and `data` (JSON; bytes in it as base64). Where to go on is taken
    from the header `Last-Event-ID`, which browsers send when they reconnect, else from the query parameter `after`;
    without both it is the first event. After `keep_alive` quiet seconds a comment is sent. `retry`: seconds after which
    a browser whose connection broke comes back. Of an error that a handler raised only the type is told, because its
    text may say what is nobody's business; `reasons=True` sends all of it.

    Raises HTTPException before anything is sent: 400 if the event's or the run's id cannot be one, 404 if there is no
    such run, 410 if the client has seen events of it and it is gone. A client that has seen the end is answered with
    204, which tells a browser not to come back. A client that disconnects ends the reading, never the run. If the
    server of Holdfast cannot be reached any more, the stream ends, and the client comes back and goes on."""
    after = _last_seen(request)
    try:
        run = await runs.get(run_id)
    except InvalidId as wrong:
        raise HTTPException(400, str(wrong)) from None
    except RunGone as gone:
        raise HTTPException(404 if after is None else 410, str(gone)) from None
    except (Unavailable, Indeterminate):
        return EventStream(_only_retry(retry))  # a browser that gets an error never comes back
    if after is not None and run.over and _order(after) >= _order(run.last_event):
        return Response(status_code=204)
    return EventStream(_lines(runs, run_id, after, keep_alive, retry, reasons))


class EventStream(StreamingResponse):
    """Server-Sent Events, whose source is closed as soon as nobody reads any more."""

    media_type = "text/event-stream"

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__(lines, headers=HEADERS)
        self._lines = lines

    async def stream_response(self, send: Send) -> None:
        """Send it all. However that ends, the source is closed."""
        async with aclosing(self._lines):
            await super().stream_response(send)


async def _only_retry(retry: float) -> AsyncGenerator[bytes, None]:
    yield b"retry: %d\n\n" % round(retry * 1000)


async def _lines(
    runs: Runs, run_id: str, after: str | None, keep_alive: float, retry: float, reasons: bool
) -> AsyncGenerator[bytes, None]:
    yield b"retry: %d\n\n" % round(retry * 1000)
    try:
        async with aclosing(runs.events(run_id, after, keep_alive=keep_alive)) as events:
            async for event in events:
                yield b": alive\n\n" if event.kind == "alive" else encode(event if reasons else _discreet(event))
    except (Unavailable, Indeterminate, RunGone, ConfigurationError):
        return  # the client comes back, and what is wrong then can be said with a status


def encode(event: Event) -> bytes:
    """One event as it goes over the wire."""
    plain = _with_text_keys(event.data)
    data = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), default=_base64).translate(NO_LINES)
    return f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n".encode()


def _discreet(event: Event) -> Event:
    if event.kind != "end" or event.data["state"] != "failed":
        return event
    return dataclasses.replace(event, data={**event.data, "reason": event.data["reason"].partition(": ")[0]})


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _last_seen(request: Request) -> str | None:
    # A browser that reconnects asks for the same address as at first: then the header is the newer of the two.
    for where, given in (
        ("the header Last-Event-ID", request.headers.get("last-event-id")),
        ("the query parameter after", request.query_params.get("after")),
    ):
        if given:
            if EVENT_ID.fullmatch(given) is None:
                raise HTTPException(
                    400, f"pass the id of an event as it came, like 1763210000000-0, in {where}, not {given[:40]!r}"
                )
            return given
    return None


def _order(event_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in event_id.split("-"))
