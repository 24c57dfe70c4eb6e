"""A health address: `GET /healthz` answers 200 while the server answers, 503 otherwise. Loopback only, read only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

LONGEST_REQUEST = 8192
PATIENCE = 5.0

Probe = Callable[[], Awaitable[dict[str, object]]]


async def serve(probe: Probe, host: str, port: int) -> asyncio.Server:
    """Start answering. `probe` raises when the server is not well."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            status, body = await _respond(probe, head)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            status, body = "400 Bad Request", {"status": "bad request"}
        text = json.dumps(body).encode()
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
            + text
        )
        try:
            await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=LONGEST_REQUEST)


async def _respond(probe: Probe, head: bytes) -> tuple[str, dict[str, object]]:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if path not in (b"/healthz", b"/readyz"):
        return "404 Not Found", {"status": "not found", "try": "/healthz"}
    if method not in (b"GET", b"HEAD"):
        return "405 Method Not Allowed", {"status": "only GET"}
    try:
        facts = await asyncio.wait_for(probe(), PATIENCE)
    except Exception as error:
        return "503 Service Unavailable", {"status": "unavailable", "error": type(error).__name__}
    return "200 OK", {"status": "ok", **facts}
