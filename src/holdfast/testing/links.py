"""One proxied connection and the faults that may befall it. Everything here runs on the proxy's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from .resp import Splitter, words

Direction = Literal["requests", "replies"]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CHUNK = 65_536
_QUEUED_CHUNKS = 1000
_PACE = 0.02

_SUBSCRIPTIONS = {
    *(b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE"),
    *(b"UNSUBSCRIBE", b"PUNSUBSCRIBE", b"SUNSUBSCRIBE"),
}
_ENDLESS = {b"MONITOR", b"SYNC", b"PSYNC"}


@dataclass
class Rule:
    """Which requests a fault is for, and for how many of them. `remaining` None means any number."""

    match: bytes | None = None
    remaining: int | None = None
    cut: bool = True

    def applies(self, request: bytes) -> bool:
        return self.remaining != 0 and (self.match is None or self.match in request)

    def use(self) -> None:
        if self.remaining is not None:
            self.remaining -= 1


@dataclass
class Counters:
    connections: int = 0
    requests: int = 0
    dropped: int = 0


@dataclass
class Faults:
    """What is wrong at present."""

    delays: dict[Direction, float] = field(default_factory=dict)
    rate: float | None = None
    drop: Rule | None = None
    cut: Rule | None = None
    hole: Rule | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Wake everybody who sleeps because of a fault, so that a new setting or a healing takes effect at once."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()


class Lane:
    """One direction of a connection: what is put in comes out in order, late and slow if it must."""

    def __init__(self, direction: Direction, faults: Faults, counters: Counters) -> None:
        self._direction = direction
        self._faults = faults
        self._counters = counters
        self._queue: asyncio.Queue[tuple[float, list[bytes]] | None] = asyncio.Queue(_QUEUED_CHUNKS)

    async def put(self, messages: list[bytes]) -> None:
        if messages:
            await self._queue.put((asyncio.get_running_loop().time(), messages))

    async def end(self) -> None:
        """Let `run` return when all that was put in before is out."""
        await self._queue.put(None)

    async def run(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while (item := await self._queue.get()) is not None:
                arrived, messages = item
                await self._wait_out_delay(arrived)
                await self._write(writer, b"".join(messages))
                if self._direction == "requests":
                    self._counters.requests += len(messages)

    async def _wait_out_delay(self, arrived: float) -> None:
        # Counted from the arrival, so that a pipeline is late as a whole and not by one delay per chunk.
        clock = asyncio.get_running_loop().time
        while (rest := arrived + self._faults.delays.get(self._direction, 0.0) - clock()) > 0:
            await self._faults.sleep(rest)

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        while data:
            rate = self._faults.rate
            size = len(data) if rate is None else max(1, int(rate * _PACE))
            writer.write(data[:size])
            await writer.drain()
            if rate is not None:
                await self._faults.sleep(len(data[:size]) / rate)
            data = data[size:]


class Link:
    """A client, the server, and the two lanes between them."""

    def __init__(self, client: Streams, faults: Faults, counters: Counters) -> None:
        self._client = client
        self._faults = faults
        self._counters = counters
        self._requests = Splitter(inline=True)
        self._replies = Splitter()
        # Requests whose replies have not come yet. None when replies can no longer be told apart.
        self._unanswered: deque[bytes] | None = deque()
        self._resp3 = False
        # Bytes cannot be lost from the middle of a stream. Once a reply is gone, all later ones on this
        # connection must go too, or the client would take them for the answers to other questions.
        self._deaf = False
        self._dead = False

    @property
    def broken(self) -> bool:
        """Whether bytes were lost, so that the connection can never be used again."""
        return self._deaf or self._dead

    async def run(self, server: Streams | None) -> None:
        """Carry bytes until one side ends or a fault cuts it; cancel to cut it now. Without a server, swallow all."""
        self._dead = server is None
        up = Lane("requests", self._faults, self._counters)
        down = Lane("replies", self._faults, self._counters)
        writers = [self._client[1]]
        lanes = [asyncio.ensure_future(down.run(self._client[1]))]
        pumps = [asyncio.ensure_future(self._carry_requests(self._client[0], up))]
        if server is not None:
            writers.append(server[1])
            lanes.append(asyncio.ensure_future(up.run(server[1])))
            pumps.append(asyncio.ensure_future(self._carry_replies(server[0], down)))
        try:
            # A pump that sees the end of its stream, or a fault, ends its lane, which first delivers what it
            # holds.
            await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
            for writer in writers:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
        finally:
            for task in (*pumps, *lanes):
                task.cancel()
            for writer in writers:
                writer.transport.abort()
            await asyncio.gather(*pumps, *lanes, return_exceptions=True)

    async def _carry_requests(self, reader: asyncio.StreamReader, lane: Lane) -> None:
        while data := await _read(reader):
            passing: list[bytes] = []
            for request in self._requests.feed(data):
                if self._swallows(request):
                    continue
                if self._cuts(request):
                    await lane.put(passing)
                    await lane.end()
                    return
                self._expect_reply_to(request)
                passing.append(request)
            await lane.put(passing)
        await self._pass_end(lane)

    async def _carry_replies(self, reader: asyncio.StreamReader, lane: Lane) -> None:
        while data := await _read(reader):
            passing: list[bytes] = []
            for reply in self._replies.feed(data):
                rule = self._drop_rule(self._request_of(reply))
                if rule is None and not self._swallows() and not self._deaf:
                    passing.append(reply)
                    continue
                self._counters.dropped += 1
                if rule is not None and rule.cut:
                    await lane.put(passing)
                    await lane.end()
                    return
                self._deaf = True
            await lane.put(passing)
        await self._pass_end(lane)

    async def _pass_end(self, lane: Lane) -> None:
        # In a black hole not even the end of a connection gets through. The link then lasts until it is cut.
        if not self._swallows():
            await lane.end()

    def _swallows(self, request: bytes | None = None) -> bool:
        """Whether the black hole takes it. What it has once taken from, it keeps."""
        hole = self._faults.hole
        if hole is not None and (hole.match is None or (request is not None and hole.applies(request))):
            self._dead = True
        return self._dead

    def _cuts(self, request: bytes) -> bool:
        rule = self._faults.cut
        if rule is None or not rule.applies(request):
            return False
        rule.use()
        return rule.remaining == 0

    def _drop_rule(self, request: bytes | None) -> Rule | None:
        rule = self._faults.drop
        if rule is None or request is None or self.broken or not rule.applies(request):
            return None
        rule.use()
        return rule

    def _expect_reply_to(self, request: bytes) -> None:
        command, argument = words(request)
        if command == b"HELLO":
            self._resp3 = argument == b"3" or (self._resp3 and argument != b"2")
        if self._unanswered is None:
            return
        if command in _SUBSCRIPTIONS:
            # RESP3 answers with pushes, which are recognised. In RESP2 a message looks like any other reply.
            if not self._resp3:
                self._unanswered = None
        elif command in _ENDLESS or (command, argument) == (b"CLIENT", b"REPLY") or self._requests.opaque:
            self._unanswered = None
        else:
            self._unanswered.append(request)

    def _request_of(self, reply: bytes) -> bytes | None:
        if not self._unanswered or reply.startswith(b">"):
            return None
        return self._unanswered.popleft()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_CHUNK)
    except ConnectionError:
        return b""
