"""The HTTP API: the library for people who are not on Python. Same guarantees, same errors."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.node.access import require
from holdfast.node.api import buffers, fleet, locks, monitors, once, openapi, runs, sessions
from holdfast.node.api.operation import Operation, route

OPERATIONS: tuple[Operation, ...] = tuple(
    one for room in (buffers, sessions, runs, once, monitors, locks, fleet) for one in room.OPERATIONS
)


def routes() -> list[BaseRoute]:
    """All of them, and the pages that describe them."""
    described = openapi.document(OPERATIONS)

    async def document(request: Request) -> Response:
        require(request, "read")
        root = request.scope.get("root_path", "")
        return JSONResponse({**described, "servers": [{"url": root or "/"}]})

    async def page(request: Request) -> Response:
        require(request, "read")
        return HTMLResponse(openapi.page(OPERATIONS, request.scope.get("root_path", "")))

    async def style(request: Request) -> Response:
        return Response(openapi.STYLE, media_type="text/css")

    return [
        *map(route, OPERATIONS),
        Route("/openapi.json", document),
        Route("/docs", page),
        Route("/docs.css", style),
    ]
