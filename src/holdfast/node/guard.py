"""What every request passes: no other site's forms, no endless body, and headers that keep browsers careful."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.node.problems import Refused, answer
from holdfast.node.state import Node

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "interest-cohort=(), camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
SAFE = ("GET", "HEAD", "OPTIONS")
SLOW_BODY = 30.0
"""Seconds that a body has, besides those for its size; also between two pieces of it."""
PACE = 16_384
"""Bytes in a second that it must have after that."""


class Guard:
    """Around the whole application of a node."""

    def __init__(self, app: ASGIApp, node: Node) -> None:
        self._app = app
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["holdfast.node"] = self._node

        begun = under_way = False

        async def careful(message: Message) -> None:
            nonlocal begun, under_way
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)
            begun, under_way = True, message["type"] == "http.response.start" or bool(message.get("more_body"))

        headers = Headers(scope=scope)
        try:
            _same_site(scope, headers)
            most = self._node.config.max_body
            if int(headers.get("content-length") or 0) > most:
                raise _too_large(most)
        except (Refused, ValueError) as error:
            refused = error if isinstance(error, Refused) else Refused(400, "bad-length", "send a length that is one")
            await answer(refused.problem)(scope, receive, careful)
            return
        try:
            await self._app(scope, _bounded(receive, most), careful)
        except Exception:
            if under_way or not begun:
                raise
            # Logged and answered. Starlette raises it nonetheless, and the server would log it again and hang up.
        if under_way and self._node.closing:  # a stream that ended with the node: whole, so that nobody sees an error
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _same_site(scope: MutableMapping[str, Any], headers: Headers) -> None:
    """A browser says where a request comes from. One that changes something must come from our own pages."""
    if scope["method"] in SAFE:
        return
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site in ("same-origin", "none"):
            return
    else:
        origin = headers.get("origin")
        if origin is None or urlsplit(origin).netloc == headers.get("host"):
            return
    raise Refused(403, "cross-site", "send this from the node's own pages, or from a program that is no browser")


def _bounded(receive: Receive, most: int) -> Receive:
    seen, begun = 0, time.monotonic()

    async def bounded() -> Message:
        nonlocal seen
        if seen < 0:
            return await receive()
        left = begun + SLOW_BODY + seen / PACE - time.monotonic()
        try:
            async with asyncio.timeout(min(SLOW_BODY, left)):
                message = await receive()
        except TimeoutError:
            raise Refused(408, "slow-body", f"send the body faster: {seen} bytes came in time") from None
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > most:
                raise _too_large(most)
            if not message.get("more_body"):
                seen = -1  # all of it is here; what comes now is the client's leaving
        return message

    return bounded


def _too_large(most: int) -> Refused:
    return Refused(413, "body-too-large", f"send less at once: the body may have {most} bytes")
