"""What the HTTP server and the machine can do: a route that does nothing, served as the node is.

python -m bench.node.bare

It prints "ready", then its port, and ends when standard input is closed.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def nothing(request: Request) -> Response:
    await request.body()
    return Response(b"{}", media_type="application/json")


async def run() -> None:
    app = Starlette(routes=[Route("/{path:path}", nothing, methods=["POST"])])
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", http="h11", ws="none")
    server = uvicorn.Server(config)
    # TCP is named, as the node does it, or asyncio leaves Nagle's algorithm on: 40 ms for each answer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        print("ready", flush=True)
        print(listening.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(run())
