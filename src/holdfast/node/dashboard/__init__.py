"""The dashboard: pages that show what the fleet does, drawn on the server, with a little script on top."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast import HoldfastError, Unavailable
from holdfast.node import access
from holdfast.node.dashboard import (
    asking,
    audit,
    buffers,
    live,
    locks,
    login,
    monitors,
    overview,
    runs,
    sessions,
    trying,
)
from holdfast.node.dashboard.site import Page, Site
from holdfast.node.problems import Refused, handle, told

ROOMS = (overview, locks, buffers, runs, sessions, monitors, audit, trying)
PATIENCE = 8.0
"""Seconds for a page."""
Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, Exception], Awaitable[Response]]


def routes(site: Site | None = None) -> list[BaseRoute]:
    """All routes of the dashboard, for the node's application. Reads templates and static files; opens nothing."""
    site = site or Site()
    found: list[BaseRoute] = [
        Route("/static/{digest}/{name}", site.static, methods=["GET"]),
        Route("/favicon.ico", site.icon, methods=["GET"]),
        *login.routes(site),
    ]
    for room in ROOMS:
        section = room.PAGES[0].section
        for page in room.PAGES:
            found.append(Route(page.path, _answering(site, section, _page(site, page)), methods=["GET"]))
        for path, get in getattr(room, "OTHERS", ()):
            found.append(Route(path, _answering(site, section, get, "read"), methods=["GET"]))
        for path, post in getattr(room, "POSTS", ()):
            found.append(Route(path, _answering(site, section, post, "write"), methods=["POST"]))
        for action in getattr(room, "ACTIONS", ()):
            endpoint = asking.endpoint(site, action)
            found.append(Route(action.path, _answering(site, section, endpoint, "operate"), methods=["GET", "POST"]))
        for reveal in getattr(room, "REVEALS", ()):
            endpoint = asking.reveal_endpoint(site, reveal)
            found.append(Route(reveal.path, _answering(site, section, endpoint, "operate"), methods=["POST"]))
    return found


def lost(site: Site) -> Handler:
    """What is answered where there is nothing: a page to a browser, which leads on."""

    async def answer(request: Request, error: Exception) -> Response:
        if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
            return await handle(request, error)
        return site.trouble(request, "lost", told(error))

    return answer


def _page(site: Site, page: Page) -> Endpoint:
    async def answer(request: Request) -> Response:
        if live.wants_stream(request):
            return live.stream(site, page, request)
        try:
            async with asyncio.timeout(PATIENCE):
                found = await page.look(request)
        except TimeoutError:
            raise Unavailable(f"look again later: the server did not answer within {PATIENCE:g} s") from None
        context = {**site.context(request, page.section), "live": page.every > 0, **found}
        return site.html(request, page.template, context)

    return answer


def _answering(site: Site, section: str, endpoint: Endpoint, scope: str = "read") -> Endpoint:
    """With the right to do it, and with a page that says what to do where it does not work.

    Who is nobody yet is left to the node, which asks to sign in."""

    async def answer(request: Request) -> Response:
        try:
            access.require(request, scope)
            return await endpoint(request)
        except (Refused, HoldfastError) as error:
            found = told(error)
            if found.status == 401 or "text/html" not in request.headers.get("accept", ""):
                raise
            return site.trouble(request, section, found)

    return answer
