"""The process that uses the library, or the HTTP API, for the same work (protocol: bench/peers/python/calling.py).

python -m bench.node.api_worker library|api:PORT|bare:PORT ADDR SECONDS PHASE …

Phases: `append`, one message; `items`, a hundred in one call; `once`; `lock`, acquire and release; `observe`, a
hundred states of which one changed. A call answers 1 if its answer was right (`bare`: if there was one).

The HTTP client is a socket with keep-alive for each caller, requests put together from ready pieces, and the least
that an answer can be read with: an HTTP library would cost more than the node does.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ..buffers.append_worker import DATA, PER_USER
from ..once.gate_worker import AT_ONCE, Things
from ..peers.python.calling import Call, main

CALLERS = 32
ITEMS = [DATA] * AT_ONCE
WITHIN = 300
BUFFER, SPACE, MONITOR, SOURCE = "api", "orders", "venues", "bench"

encode = msgspec.json.Encoder().encode
OUTCOMES = re.compile(rb'"outcome":"(\w+)"')
Observe = Callable[[int, list[tuple[str, str, Any]]], Awaitable[list[str]]]


async def observing(observe: Observe) -> Call:
    """A call that observes the next hundred states of a block of things, and knows what must come out."""
    things = Things()
    known = [(SOURCE, key, state) for key, state in things.all()[: CALLERS * AT_ONCE]]
    for at in range(0, len(known), AT_ONCE):
        await observe(0, known[at : at + AT_ONCE])

    async def call(who: str, number: int) -> int:
        caller = number_of(who)
        asked = [things.next(caller) for _ in range(AT_ONCE)]
        found = await observe(caller, [(SOURCE, *thing) for thing, _ in asked])
        return found == ["changed" if changed else "unchanged" for _, changed in asked]

    return call


def number_of(who: str) -> int:
    return int(who.rpartition("-")[2])


def user_of(who: str, number: int) -> str:
    return f"user-{who}-{number // PER_USER}"


# -- the library ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def library(addr: str) -> AsyncIterator[Mapping[str, Call]]:
    from holdfast import Holdfast

    async with Holdfast(f"redis://{addr}") as hf:
        inbox, monitor = hf.buffer(BUFFER), hf.monitor(MONITOR)

        async def append(who: str, number: int) -> int:
            return (await inbox.append(user_of(who, number), DATA)).length == number % PER_USER + 1

        async def items(who: str, number: int) -> int:
            return (await inbox.extend(f"items-{who}-{number}", ITEMS)).length == AT_ONCE

        async def once(who: str, number: int) -> int:
            return await hf.once(SPACE, f"order-{who}-{number}", WITHIN)

        async def lock(who: str, number: int) -> int:
            lease = await hf.lock(f"lock-{who}").acquire()
            await lease.release()  # raises if it was lost
            return 1

        async def observe(caller: int, seen: list[tuple[str, str, Any]]) -> list[str]:
            return [one.outcome for one in await monitor.observe_many(seen)]

        yield {"append": append, "items": items, "once": once, "lock": lock, "observe": await observing(observe)}


# -- HTTP -------------------------------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, port: int) -> None:
        self._head = (
            f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: ".encode()
        )
        self._data = b""
        self._answer: asyncio.Future[bytes]

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(ConnectionError("the node closed the connection"))

    async def post(self, path: bytes, body: bytes) -> bytes:
        """The body of the answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(b"POST %b %b%d\r\n\r\n%b" % (path, self._head, len(body), body))
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n") + 4
        if head < 4:
            return
        fields = self._data[:head].lower()
        at = fields.index(b"content-length:") + 15
        end = head + int(fields[at : fields.index(b"\r\n", at)])
        if len(self._data) < end:
            return
        body, self._data = self._data[head:end], self._data[end:]
        if fields.startswith((b"http/1.1 200", b"http/1.1 201")):
            self._answer.set_result(body)
        else:
            self._answer.set_exception(ConnectionError(f"{fields[9:12].decode()}: {body.decode()[:200]}"))


@contextlib.asynccontextmanager
async def http(port: int, bare: bool, addr: str) -> AsyncIterator[Mapping[str, Call]]:
    loop, connections = asyncio.get_running_loop(), []
    for _ in range(CALLERS):
        connections.append((await loop.create_connection(lambda: Connection(port), "127.0.0.1", port))[1])
    one, many = encode(DATA), encode(ITEMS)
    messages = f"/v1/buffers/{BUFFER}/messages".encode()

    def right(found: bool) -> int:
        return found or bare

    def post(who: str, path: bytes, body: bytes) -> Awaitable[bytes]:
        return connections[number_of(who)].post(path, body)

    async def append(who: str, number: int) -> int:
        body = b'{"user":"%b","data":%b}' % (user_of(who, number).encode(), one)
        return right(b'"length":%d,' % (number % PER_USER + 1) in await post(who, messages, body))

    async def items(who: str, number: int) -> int:
        body = b'{"user":"items-%b-%d","items":%b}' % (who.encode(), number, many)
        return right(b'"length":%d,' % AT_ONCE in await post(who, messages, body))

    async def once(who: str, number: int) -> int:
        body = b'{"id":"order-%b-%d","within":%d}' % (who.encode(), number, WITHIN)
        return right(await post(who, b"/v1/once/orders", body) == b'{"new":true}')

    async def lock(who: str, number: int) -> int:
        name = f"lock-{who}".encode()
        found = msgspec.json.decode(await post(who, b"/v1/locks/acquire", b'{"name":"%b"}' % name))
        token = found.get("token", "none").encode()
        released = await post(who, b"/v1/locks/release", b'{"name":"%b","token":"%b"}' % (name, token))
        return right(released == b'{"released":true}')

    async def observe(caller: int, seen: list[tuple[str, str, Any]]) -> list[str]:
        body = encode({"observations": [{"source": s, "key": key, "state": state} for s, key, state in seen]})
        found = await connections[caller].post(f"/v1/monitors/{MONITOR}/observe".encode(), body)
        return [outcome.decode() for outcome in OUTCOMES.findall(found)]

    watching = await observing(observe)

    async def observed(who: str, number: int) -> int:
        return right(bool(await watching(who, number)))

    yield {"append": append, "items": items, "once": once, "lock": lock, "observe": observed}


if __name__ == "__main__":
    how, _, at = sys.argv[1].partition(":")
    main(library if how == "library" else functools.partial(http, int(at), how == "bare"), sys.argv[2:])
