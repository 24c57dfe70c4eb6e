"""Tells what a gate has held back, when its window is over. Runs in the processes that run `work`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.calling import in_thread, is_blocking
from holdfast.engine.core import Core
from holdfast.errors import HoldfastError
from holdfast.events import HandlerFailed
from holdfast.once import gating
from holdfast.once.gating import GateSpec, Notice

LOOK = 1.0
"""A window's end is noticed at most so late: any process may have begun it, and nobody is told of that."""
AT_ONCE = 32


class Settler:
    """Calls a handler with each notice that is due. One that raises gets it again after `lease` seconds."""

    def __init__(self, core: Core, spec: GateSpec, handler: Callable[[Notice], Any], lease: float) -> None:
        self._core = core
        self._spec = spec
        self._handler = handler
        self._lease = lease
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
        assert self._driver is not None
        while not self._stopping.is_set():
            wait: float | None = None
            try:
                asked = self._core.clock()
                notices, wait = await self._driver.run(gating.due(self._core, self._spec, AT_ONCE, self._lease))
                async with asyncio.TaskGroup() as telling:
                    for notice in notices:
                        telling.create_task(self._tell(notice, asked + self._lease))
            except HoldfastError as error:
                self._core.warn(f"gate {self._spec.name}: {error}")
            pause = LOOK if wait is None else min(LOOK, wait)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, pause) * (0.75 + random.random() / 2)):  # noqa: S311
                    await self._stopping.wait()

    async def _tell(self, notice: Notice, until: float) -> None:
        assert self._driver is not None
        handler = self._handler
        try:
            async with asyncio.timeout(max(0.0, until - self._core.clock())):
                if is_blocking(handler):
                    await in_thread(lambda: handler(notice))
                else:
                    await handler(notice)
        except Exception as error:  # whatever the handler raises: it comes again
            if self._core.events:
                failure = f"{type(error).__name__}: {error}"
                self._core.events.emit(HandlerFailed(self._spec.name, str(notice.key), notice.name, 1, failure))
            return
        try:
            await self._driver.run(gating.told(self._core, self._spec, notice))
        except HoldfastError as error:
            self._core.warn(f"gate {self._spec.name}: told, but that was not stored, so it is told again: {error}")
