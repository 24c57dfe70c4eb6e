"""Who subscribes, as one process knows it: from the store and from the server, for a minute or until it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.calling import in_thread
from holdfast.engine.core import Core
from holdfast.errors import HoldfastError
from holdfast.monitor import flows
from holdfast.monitor.matching import from_record
from holdfast.monitor.parts import MonitorParts
from holdfast.monitor.record import Subscriber
from holdfast.monitor.spec import MonitorSpec, from_text

T = TypeVar("T")
STORE_SECONDS = 30.0
"""A database that does not answer for so long counts as away."""
FRESH = 60.0
"""Subscribers that somebody changed in the database by hand are noticed after so long."""


async def apart(function: Callable[[], T]) -> T:
    """Call a store in a thread of its own: one that hangs must not use up those that others need."""
    async with asyncio.timeout(STORE_SECONDS):
        return await in_thread(function)


class Roster:
    """The subscribers of one monitor."""

    def __init__(self, core: Core, spec: MonitorSpec, parts: MonitorParts) -> None:
        self._core = core
        self._spec = spec
        self._parts = parts
        self._version: int | None = None
        self._at = float("-inf")
        self._enlisted: dict[str, bytes] | None = None
        self._lock = asyncio.Lock()
        self.known: Sequence[Subscriber] = ()

    async def enlist(self, driver: AsyncDriver) -> None:
        """Say which functions are here, once, so that other processes let them have their changes."""
        records = self._parts.records()
        if records and self._enlisted != records:
            await driver.run(flows.enlist(self._core, self._spec, records))
            self._enlisted = records

    async def of(self, version: int, driver: AsyncDriver) -> Sequence[Subscriber]:
        """All of them, at least as new as this version. Raises if they were never known and cannot be asked for."""
        await self.ready(driver)
        old = self._core.clock() - self._at > FRESH
        if version != self._version or (old and not self._lock.locked()):
            await self._load(driver)
            if self._enlisted is None and self._parts.functions:
                await self.enlist(driver)
                await self._load(driver)
        return self.known

    async def ready(self, driver: AsyncDriver) -> None:
        """Know them, however old."""
        await self.enlist(driver)
        if self._version is None:
            await self._load(driver)

    async def get(self, name: str, version: int, driver: AsyncDriver) -> Subscriber | None:
        """One of them, at least as new as this version; None if it is there no more."""
        for one in await self.of(version, driver):
            if one.name == name:
                return one
        await self._load(driver)
        return next((one for one in self.known if one.name == name), None)

    async def _load(self, driver: AsyncDriver) -> None:
        async with self._lock:
            roll = await driver.run(flows.roll(self._core, self._spec))
            found = {}
            for name, record in roll.functions.items():
                if not record:
                    continue
                try:
                    found[name] = from_record(from_text(record))
                except HoldfastError as error:
                    self._core.warn(f"monitor {self._spec.name}: subscriber {name!r} cannot be read: {error}")
            store = self._parts.store
            if store is not None:
                try:
                    stored = await apart(lambda: store.subscribers(self._spec.name))
                except Exception as error:  # a store may raise anything
                    if roll.version != self._version:
                        raise  # they were changed, and nobody may be passed over
                    self._core.warn(f"monitor {self._spec.name}: telling those who subscribed before: {error}")
                    stored = [one for one in self.known if one.sink != "call"]
                found = {one.name: one for one in stored} | found
            if not self._parts.functions.keys() <= roll.functions.keys():
                self._enlisted = None  # a server that has forgotten them: say it again
            self.known = list(found.values())
            self._version, self._at = roll.version, self._core.clock()
