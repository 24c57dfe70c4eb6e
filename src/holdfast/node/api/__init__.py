"""The HTTP API: the library for people who are not on Python. Same guarantees, same errors."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.node.access import require
from holdfast.node.api import buffers, fleet, locks, monitors, once, openapi, runs, sessions
from holdfast.node.api.operation import Operation, Routes
from holdfast.node.state import node_of

OPERATIONS: tuple[Operation, ...] = tuple(
    one for room in (buffers, sessions, runs, once, monitors, locks, fleet) for one in room.OPERATIONS
)


def routes() -> list[BaseRoute]:
    """All of them, and the pages that describe them."""
    described = openapi.document(OPERATIONS)

    async def document(request: Request) -> Response:
        require(request, "read")
        root = request.scope.get("root_path", "")
        needed: dict[str, Any] = {"security": [{"token": []}]} if node_of(request).access.tokens else {}
        return JSONResponse({**described, **needed, "servers": [{"url": root or "/"}]})

    async def page(request: Request) -> Response:
        require(request, "read")
        return HTMLResponse(openapi.page(OPERATIONS, request.scope.get("root_path", "")))

    async def style(request: Request) -> Response:
        return Response(openapi.STYLE, media_type="text/css")

    return [
        Routes(OPERATIONS),
        Route("/openapi.json", document),
        Route("/docs", page),
        Route("/docs.css", style),
    ]
