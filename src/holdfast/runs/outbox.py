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
from holdfast.errors import HoldfastError
from holdfast.runs import flows
from holdfast.runs.flows import Given
from holdfast.runs.record import pack_events
from holdfast.runs.spec import RunSpec

MOST = 1000
MANY = 262_144
"""Events, and bytes of events, in one write: a script must not keep the server long."""
AGAIN = 1.0


class _Write(NamedTuple):
    number: int
    blob: bytes
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
        self._sent_at = float("-inf")
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
        driver.call_later(wait, lambda: driver.background(self._send_soon(driver)))

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
                driver.call_later(AGAIN, lambda: driver.background(self._send_soon(driver)))

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
        async with self._turn:
            await self._send_rest(driver)
            left = len(self._waiting)  # what comes meanwhile has its own time
            while left > 0 or what:
                count, blob = self._blob()
                left -= count
                last = left <= 0
                self._number += 1
                self._current = _Write(self._number, blob, *((what, data, name) if last else ()))
                if last:
                    what = ""
                await self._send_rest(driver)

    def _blob(self) -> tuple[int, bytes]:
        payloads = self._pop()
        return len(payloads), pack_events(payloads) if payloads else b""

    async def _send_rest(self, driver: AsyncDriver) -> None:
        if self._current is not None:
            self._sent_at = self._core.clock()  # what comes during the round trip is gathered, too
            await driver.run(flows.write(self._core, self._spec, self._given, *self._current))
            self._current = None

    async def settle(self, driver: AsyncDriver, outcome: str, reason: str, result: bytes, delay: float = 0.0) -> str:
        """End the run or hand it back, with all that was emitted before. Answers its state."""
        async with self._turn:
            await self._send_rest(driver)
            while len(self._waiting) > self._most or self._bytes > self._many:
                self._number += 1
                self._current = _Write(self._number, self._blob()[1])
                await self._send_rest(driver)
            flow = flows.settle(
                self._core, self._spec, self._given, self._number + 1, self._blob()[1], outcome, reason, result, delay
            )
            return await driver.run(flow)
