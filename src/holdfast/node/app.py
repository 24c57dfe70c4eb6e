"""The node as an ASGI application: API, dashboard, metrics, health. It can be mounted in another one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

import holdfast
from holdfast import Holdfast, HoldfastError
from holdfast.node import api, dashboard, metrics, problems
from holdfast.node.access import Access, require
from holdfast.node.dashboard.site import Site
from holdfast.node.guard import Guard
from holdfast.node.state import Node, node_of
from holdfast.settings import Collections, NodeSettings, collections_of, found


class NodeApp:
    """What is served. `node` is its state; it lives as long as the client is open."""

    def __init__(self, node: Node) -> None:
        self.node = node
        site = Site()
        routes: list[BaseRoute] = [
            Route("/healthz", healthy), Route("/readyz", ready), Route("/metrics", metrics.metrics),
            *api.routes(), *dashboard.routes(site),
        ]  # fmt: skip
        handlers: Any = dict.fromkeys(
            (problems.Refused, HoldfastError, HTTPException, ClientDisconnect, Exception), problems.handle
        )
        handlers[404] = dashboard.lost(site)
        self._app: ASGIApp = Guard(Starlette(routes=routes, exception_handlers=handlers), node)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def create(hf: Holdfast, *, store: Any = None, collections: Collections | None = None, **options: Any) -> NodeApp:
    """A node around a client that is open, or opened before the first request: mount it in an app of yours.

        app.mount("/holdfast", create(hf, token=os.environ["HOLDFAST_NODE_TOKEN"]))

    `options` are those of `NodeSettings`, as far as they make sense here; the environment and the configuration file
    count too. Without a token only requests from the same machine, under a name of loopback, are answered. `store`: an
    open `holdfast.memory.MonitorStore`, for subscribers and history of monitors. `collections`: what the file says in
    tables such as [buffers.messages], as `{"buffers": {"messages": {"capacity": 50}}}`; by default, what it says."""
    config = NodeSettings(**{name: value for name, (value, _) in found(NodeSettings, options).items()})
    return NodeApp(Node(hf, config, Access(config), store, collections_of() if collections is None else collections))


def mount(path: str, hf: Holdfast, **options: Any) -> Mount:
    """The same as a route, for an application that is made from routes."""
    return Mount(path, create(hf, **options))


@contextlib.asynccontextmanager
async def running(app: NodeApp) -> AsyncIterator[Node]:
    """The background work of a node: measuring. Streams end with it."""
    app.node.sampler.start()
    try:
        yield app.node
    finally:
        app.node.close()


async def healthy(request: Request) -> Response:
    """Is this process alive? It does not ask the server: restarting the node would not mend that one."""
    return JSONResponse({"status": "ok", "version": holdfast.__version__})


async def ready(request: Request) -> Response:
    """May requests be sent here?"""
    node = node_of(request)
    try:
        if node.closing:
            return JSONResponse({"status": "stopping"}, 503)
        facts = await node.ready()
    except (HoldfastError, TimeoutError) as error:
        return JSONResponse({"status": "unavailable", "error": type(error).__name__}, 503)
    return JSONResponse({"status": "ok", "version": holdfast.__version__, **facts})


__all__ = ["NodeApp", "create", "mount", "require", "running"]
