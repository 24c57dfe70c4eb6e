"""One connection that many callers share.

Everything submitted in one turn of the event loop leaves in one write; hiredis parses the replies and they are
handed out in order. A caller that gives up, by time-out or cancellation, leaves its place in the line: its reply
is read and thrown away, so no reply ever reaches another caller. A connection on which a reply is overdue is
closed, and everything still in the line is told that its reply is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from holdfast.engine.flow import NotSent, ReplyLost

SWEEP = 0.05
NOTHING: Any = object()
EARLY = 16
"""With so many unsent, write before the turn of the loop ends: the server works while the rest is still being made.
The first request on an idle connection is written at once for the same reason."""


class Pending:
    """One request in the line: `skip` replies to drop, then the one its caller waits for."""

    __slots__ = ("deadline", "future", "skip")

    def __init__(self, future: asyncio.Future[Any], skip: int, deadline: float) -> None:
        self.future = future
        self.skip = skip
        self.deadline = deadline


class MuxConnection(asyncio.Protocol):
    """Takes over the transport of a connection that redis-py has made (TLS, authentication, database)."""

    def __init__(
        self, *, timeout: float, in_flight: int, on_lost: Callable[[MuxConnection], None] | None = None
    ) -> None:
        self._timeout = timeout
        self._limit = in_flight
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=NOTHING)
        self._line: deque[Pending] = deque()
        self._unsent: list[bytes] = []
        self._unsent_count = 0
        self._flushing = False
        self._room: deque[asyncio.Future[None]] = deque()
        self._paused = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._made_by: Any = None
        self.closed = False

    def adopt(self, connection: Any) -> None:
        """Take the stream over. The writer is kept: newer Pythons close the transport when it is collected."""
        self._made_by = connection._writer
        self._transport = connection._writer.transport
        connection._reader = connection._writer = None
        assert self._transport is not None
        self._transport.set_protocol(self)

    # -- sending ------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return len(self._line) >= self._limit or self._paused

    async def room(self) -> None:
        """Wait until the line is shorter than its limit: the back-pressure that bounds memory."""
        while self.full and not self.closed:
            waiter = self._loop.create_future()
            self._room.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._room:
                    self._room.remove(waiter)
                self._open_room()  # if the place was just given to us, it is the next one's
                raise
        if self.closed:
            raise NotSent("the connection was closed")

    def send(self, payload: bytes, replies: int = 1, timeout: float | None = None) -> asyncio.Future[Any]:
        """Put a request in the line. The future gets the last reply, or NotSent or ReplyLost."""
        if self.closed:
            raise NotSent("the connection was closed")
        future = self._loop.create_future()
        deadline = self._loop.time() + (timeout or self._timeout)
        idle = not self._line
        self._line.append(Pending(future, replies - 1, deadline))
        self._unsent.append(payload)
        self._unsent_count += 1
        if idle or self._unsent_count >= EARLY:
            self._write()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._flushing = False
        if self._unsent and not self.closed:
            self._write()

    def _write(self) -> None:
        data = b"".join(self._unsent) if len(self._unsent) > 1 else self._unsent[0]
        self._unsent.clear()
        self._unsent_count = 0
        assert self._transport is not None
        self._transport.write(data)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP, self._sweep)

    # -- receiving ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        reader, line = self._reader, self._line
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not NOTHING:
                if not line:
                    return self.abort(ReplyLost("the server sent a reply that nobody asked for"))
                pending = line[0]
                if pending.skip:
                    pending.skip -= 1
                    continue
                line.popleft()
                if not pending.future.done():
                    pending.future.set_result(reply)
        except hiredis.ProtocolError as error:
            return self.abort(ReplyLost(f"the server's reply cannot be read: {error}"))
        if self._room and not self.full:
            self._open_room()

    def _open_room(self) -> None:
        free = 0 if self._paused else self._limit - len(self._line)
        while self._room and free > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._open_room()

    def _sweep(self) -> None:
        """One timer for the whole line instead of one for each call.

        The oldest overdue reply means that the server is silent. Replies come in order, so everything behind it
        is as stuck, and the connection is given up."""
        self._sweeper = None
        if self.closed or not self._line:
            return
        now = self._loop.time()
        if self._line[0].deadline <= now:
            return self.abort(ReplyLost("no reply in time"))
        for pending in self._line:
            if pending.deadline <= now and not pending.future.done():
                pending.future.set_exception(ReplyLost("no reply in time"))
        self._sweeper = self._loop.call_later(SWEEP, self._sweep)

    # -- the end ------------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(ReplyLost(f"the connection was lost: {exc or 'closed by the server'}"))

    def abort(self, error: Exception) -> None:
        """Close now. What was written may have been executed; what still waited to be written was not."""
        if self.closed:
            return
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._transport is not None:
            self._transport.abort()
        unsent = len(self._line) - self._unsent_count
        for position, pending in enumerate(self._line):
            if not pending.future.done():
                pending.future.set_exception(error if position < unsent else NotSent(str(error)))
                pending.future.exception()  # a caller that was cancelled will never ask for it
        self._line.clear()
        self._unsent.clear()
        for waiter in self._room:
            if not waiter.done():
                waiter.set_result(None)
        self._room.clear()
        if self._on_lost is not None:
            self._on_lost(self)

    async def close(self) -> None:
        """Close after the replies that are still expected, waiting for them no longer than their time-outs."""
        self._flush()
        expected = [pending.future for pending in self._line if not pending.future.done()]
        if expected and not self.closed:
            await asyncio.wait(expected, timeout=self._timeout)
        self.abort(ReplyLost("the client was closed"))
