"""Live pages: the parts that changed, as Server-Sent Events at the page's own address.

A page is looked at again every few seconds, its live blocks are drawn, and what differs is sent. There is no second
way to draw anything: what is sent is what a reload would show.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast import HoldfastError
from holdfast.node import access
from holdfast.node.dashboard.site import Page, Site
from holdfast.node.state import node_of

log = logging.getLogger("holdfast.node")
LONGEST = 600.0
"""Seconds after which a stream ends. The browser comes back, and its rights are looked at anew."""
PATIENCE = 4.0
"""Seconds for one look: a reader should not take what is old for what is, as long as a client would try."""
HEADERS = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}


def wants_stream(request: Request) -> bool:
    """Does a live page ask, and not a reader?"""
    return request.query_params.get("live") == "1"


def message(kind: str, data: object, event_id: str = "") -> str:
    """One event as it goes over the wire. JSON as ASCII has no line ends that anybody could take for one."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n"


def _trouble(error: HoldfastError | TimeoutError) -> str:
    return message("trouble", {"detail": str(error) or f"no answer for {PATIENCE:g} s"})


class Stream(StreamingResponse):
    """A stream that ends with the node, and counts among its streams."""

    def __init__(self, request: Request, body: AsyncGenerator[str, None]) -> None:
        super().__init__(body, 200, HEADERS, "text/event-stream")
        self._node = node_of(request)
        self._caller = access.require(request, "read").name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = super().__call__
        await self._node.streaming(self._caller, lambda: sending(scope, receive, send))


def stream(site: Site, page: Page, request: Request) -> Response:
    """What changes on a page, until the reader leaves. Readers beyond the limit are told to come back later."""
    node = node_of(request)
    if page.every <= 0 or node.closing or node.streams >= node.config.max_streams:
        return Response("too many live pages are open", 503, {"Retry-After": "10"}, "text/plain")
    return Stream(request, _changes(site, page, request))


async def _changes(site: Site, page: Page, request: Request) -> AsyncGenerator[str, None]:
    queue: asyncio.Queue[str | None] = asyncio.Queue(64)
    jobs = [asyncio.create_task(_patches(site, page, request, queue))]
    if page.feed is not None:
        jobs.append(asyncio.create_task(_rows(site, page, request, queue)))
    try:
        yield "retry: 2000\n\n"
        ends = time.monotonic() + LONGEST
        while (text := await queue.get()) is not None:
            yield text
            if time.monotonic() > ends:
                yield message("again", {})
                return
    finally:
        for job in jobs:
            job.cancel()
        for error in await asyncio.gather(*jobs, return_exceptions=True):
            if isinstance(error, Exception):
                log.error("a live page failed: %s", request.url.path, exc_info=error)


async def _patches(site: Site, page: Page, request: Request, queue: asyncio.Queue[str | None]) -> None:
    sent: dict[str, str] = {}
    pause = node_of(request).config.sample if page.sampled else page.every
    try:
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    context = {**site.context(request, page.section), **await page.look(request), "live": True}
            except (HoldfastError, TimeoutError) as error:
                await queue.put(_trouble(error))
            else:
                made = site.blocks(page.template, context)
                changed = {name: html for name, html in made.items() if sent.get(name) != html}
                sent = made
                await queue.put(message("patch", {"now": context["now"], "parts": changed}))
            await asyncio.sleep(pause)
    finally:
        # Also when it broke: a stream that says nothing more would look like a page on which nothing happens.
        while queue.full():
            queue.get_nowait()
        queue.put_nowait(None)


async def _rows(site: Site, page: Page, request: Request, queue: asyncio.Queue[str | None]) -> None:
    """Rows to add. The browser says which one it saw last, also after a break."""
    assert page.feed is not None
    after = request.headers.get("last-event-id") or request.query_params.get("after", "")
    try:
        async for rows in page.feed(request, after):
            html = site.part(rows.template, rows.context)
            await queue.put(message("add", {"to": "feed", "html": html}, rows.last))
    except HoldfastError as error:
        await queue.put(_trouble(error))
