"""Puts runs that have ended, with their events, where they stay: before the server forgets them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.errors import RunGone
from holdfast.events import Dropped
from holdfast.keys import decode as decode_id
from holdfast.runs import flows
from holdfast.runs.feed import Reader
from holdfast.runs.record import Event, Run
from holdfast.runs.spec import RunSpec

AT_ONCE = 16
PAUSE, PAUSE_MOST = 2.0, 60.0
AGAIN = 10.0
"""What could not be stored is tried again after so long."""


class Archive(Protocol):
    """Where ended runs are kept. `keep` may be a coroutine function, or block; the same run may come twice."""

    def keep(self, collection: str, run: Run, events: Sequence[Event]) -> Any:
        """Store it, once. When it raises, the run comes again later."""


class Archiver:
    """Stores the ended runs of one collection, in the processes that run `work`."""

    def __init__(self, core: Core, spec: RunSpec, store: Archive) -> None:
        self._core = core
        self._spec = spec
        self._store = store
        self._driver: AsyncDriver | None = None
        self._stopping = asyncio.Event()

    def use(self, driver: AsyncDriver) -> None:
        """With whom it talks to the server; before `run`."""
        self._driver = driver
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish what is under way, and no more."""
        self._stopping.set()

    async def run(self) -> None:
        """Until stopped or cancelled."""
        failures = 0
        while not self._stopping.is_set():
            try:
                more = await self.store_some()
                failures = 0
            except Exception as error:  # whatever the store raises: what is not stored stays listed
                failures, more = failures + 1, False
                self._core.warn(f"{self._spec.name}: archiving runs failed: {type(error).__name__}: {error}")
            if not more:
                pause = min(PAUSE_MOST, PAUSE * 2.0 ** min(failures, 10)) * (0.5 + random.random())  # noqa: S311
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopping.wait()

    async def store_some(self) -> bool:
        """Store a number of runs. Answers True if there are more."""
        driver = self._driver
        assert driver is not None
        _, gone, names = await driver.run(flows.archive(self._core, self._spec, AT_ONCE, AGAIN, ()))
        if gone and self._core.events:
            self._core.events.emit(Dropped(self._spec.name, "run", "not archived in time", gone))
        stored, failure, left = [], None, 0
        for name in names:
            try:
                await self._store_one(driver, name)
            except Exception as error:  # whatever the store raises: this one comes again, the others go on
                failure = error
            else:
                stored.append(name)
        if stored:
            left, _, _ = await driver.run(flows.archive(self._core, self._spec, 0, AGAIN, stored))
        if failure is not None:
            raise failure
        return bool(stored) and left > 0

    async def _store_one(self, driver: AsyncDriver, name: str) -> None:
        run_id = decode_id(name)
        reader = Reader(self._core, self._spec, run_id, None, None, None)
        events: list[Event] = []
        try:
            run = await driver.run(flows.look(self._core, self._spec, run_id, strict=True))
            if not run.over:
                return  # the id was used again before the first one was stored: this one is listed when it ends
            while not reader.over:
                events += await driver.run(reader.more())
        except RunGone:
            if self._core.events:
                self._core.events.emit(Dropped(self._spec.name, "run", "not archived in time", 1))
            return
        finally:
            reader.leave(driver)
        keep = self._store.keep
        if inspect.iscoroutinefunction(keep):
            await keep(self._spec.name, run, events)
        else:
            await asyncio.to_thread(keep, self._spec.name, run, events)
