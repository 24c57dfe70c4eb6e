"""What an owner has emitted and not sent yet.

Events are gathered for a short while and sent together, one write at a time, in order. Each write has a number: one
whose reply was lost, or that was cancelled in the middle, is sent again as the same write and stored once. All sending
happens on one event loop; `put` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any, NamedTuple

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.errors import HoldfastError, ServerFull, TooLarge
from holdfast.runs import owning
from holdfast.runs.owning import Given
from holdfast.runs.record import pack_events
from holdfast.runs.spec import RunSpec

MOST = 1000
MANY = 262_144
"""Events, and bytes of events, in one write: a script must not keep the server long."""
AGAIN = 1.0
TOLD = 60_000
"""As many as one write can count."""


class _Write(NamedTuple):
    number: int
    payloads: list[bytes]
    what: str = ""
    data: bytes = b""
    name: str = ""


class Outbox:
    """The events of one owner of one run, on their way."""

    def __init__(self, core: Core, spec: RunSpec, given: Given) -> None:
        self._core = core
        self._spec = spec
        self._given = given
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._scheduled = False
        self._turn = asyncio.Lock()
        self._number = 0
        self._current: _Write | None = None
        self._unknown = False
        """It was sent before, and may have been written."""
        self._sent_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._most, self._many = min(MOST, spec.max_events // 2), min(MANY, spec.max_bytes // 2)

    @property
    def full(self) -> bool:
        """Whoever emits more must wait until some were sent."""
        return len(self._waiting) >= self._most or self._bytes >= self._many

    def put(self, payload: bytes, driver: Any) -> None:
        """Any thread; `driver` is the one of the caller."""
        with self._lock:
            self._waiting.append(payload)
            self._bytes += len(payload)
            quiet, self._scheduled = not self._scheduled, True
        if quiet:
            driver.later(self._schedule)

    def _schedule(self, driver: AsyncDriver) -> None:
        """Soon: at once after a quiet while, else when the others have had their time to gather."""
        wait = max(0.0, self._sent_at + self._spec.delay - self._core.clock())
        self._timer = driver.call_later(wait, lambda: self._fire(driver))

    def _fire(self, driver: AsyncDriver) -> None:
        if not driver.closed:
            driver.background(self._send_soon(driver))

    async def _send_soon(self, driver: AsyncDriver) -> None:
        with self._lock:
            self._scheduled = False
        try:
            await self.drain(driver)
        except HoldfastError:
            hold = self._given.hold
            if hold.over or hold.lost_reason:
                return
            with self._lock:
                quiet, self._scheduled = not self._scheduled, True
            if quiet:  # out of reach, or full: what was emitted is tried again
                self._timer = driver.call_later(AGAIN, lambda: self._fire(driver))

    def _pop(self) -> list[bytes]:
        with self._lock:
            payloads: list[bytes] = []
            size = 0
            while (
                self._waiting
                and len(payloads) < self._most
                and (not payloads or size + len(self._waiting[0]) <= self._many)
            ):
                payload = self._waiting.popleft()
                size += len(payload)
                payloads.append(payload)
            self._bytes -= size
            return payloads

    async def drain(self, driver: AsyncDriver, what: str = "", data: bytes = b"", name: str = "") -> None:
        """Send all that waits now, and with the last of it a checkpoint (`c`) or the result of a step (`s`)."""
        hold = self._given.hold
        if (hold.lost_reason or hold.over) and (self._waiting or self._current or what):
            raise owning.lost(hold, "runs/write")
        async with self._turn:
            await self._send_rest(driver)
            left = len(self._waiting)  # what comes meanwhile has its own time
            while left > 0 or what:
                payloads = self._pop()
                left -= len(payloads)
                last = left <= 0
                self._number += 1
                self._current = _Write(self._number, payloads, *((what, data, name) if last else ()))
                if last:
                    what = ""
                await self._send_rest(driver)

    async def _send_rest(self, driver: AsyncDriver) -> None:
        if self._current is not None:
            self._sent_at = self._core.clock()  # what comes during the round trip is gathered, too
            number, payloads, what, data, name = self._current
            blob = _packed(payloads)
            try:
                await driver.run(owning.write(self._core, self._spec, self._given, number, blob, what, data, name))
            except TooLarge:
                with self._lock:  # nothing of it was written: the events go with the next write
                    self._waiting.extendleft(reversed(payloads))
                    self._bytes += sum(map(len, payloads))
                self._number, self._current = self._number - 1, None
                raise
            except ServerFull:
                raise  # refused, though an attempt before may not have been: `unknown` says that
            except (HoldfastError, asyncio.CancelledError):
                self._unknown = True
                raise  # it may be sent again
            except BaseException:
                self._current = None  # it never can be
                raise
            self._current, self._unknown = None, False

    async def finish(self, driver: AsyncDriver, outcome: str, reason: str, result: bytes, delay: float = 0.0) -> str:
        """`settle`, and whoever is cancelled while waiting for it does not stop it."""
        return await asyncio.shield(driver.background(self.settle(driver, outcome, reason, result, delay)))

    async def settle(self, driver: AsyncDriver, outcome: str, reason: str, result: bytes, delay: float = 0.0) -> str:
        """End the run or hand it back, with all that was emitted before. Answers its state."""
        try:
            async with self._turn:
                if self._timer is not None:
                    self._timer.cancel()
                number, payloads = await self._rest(driver)
                flow = owning.settle(
                    self._core, self._spec, self._given, number, _packed(payloads), outcome, reason, result, delay
                )
                return await driver.run(flow)
        except Exception:
            self._core.end(self._given.hold)  # whatever it was: who cannot say how it ended must not keep it
            raise

    async def _rest(self, driver: AsyncDriver) -> tuple[int, list[bytes]]:
        """Send what does not go along with the end. Answers the number of the last write, and what does."""
        unsent: list[bytes] = []
        try:
            await self._send_rest(driver)
            while len(self._waiting) > self._most or self._bytes > self._many:
                self._number += 1
                self._current = _Write(self._number, self._pop())
                await self._send_rest(driver)
        except ServerFull:
            # It was surely not written, and the end is not refused on a full server: it takes the events along.
            if self._current is not None and not self._unknown:
                self._number, unsent = self._number - 1, self._current.payloads
            self._current = None
        with self._lock:
            unsent += self._waiting
            self._waiting.clear()
            self._bytes = 0
        return self._number + 1, unsent[-TOLD:]


def _packed(payloads: list[bytes]) -> bytes:
    return pack_events(payloads) if payloads else b""
