"""Runs what was registered on a client, until it is stopped: the part that both twins share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.buffers.absorber import Absorber
from holdfast.buffers.batch import Batch
from holdfast.buffers.worker import MakeBatch, Worker
from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.errors import ConfigurationError


class Work:
    """The workers of one client in this process. `stop` may be called from any thread."""

    def __init__(self, core: Core, absorbers: Sequence[Absorber]) -> None:
        if not absorbers:
            raise ConfigurationError("register something first: decorate a handler with `@hf.absorber(buffer)`")
        self._core = core
        self._absorbers = absorbers
        self._workers: list[Worker] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    async def run(self, driver: AsyncDriver) -> None:
        """Until stopped; cancelling hands back at once what is under way."""
        self._loop = asyncio.get_running_loop()
        self._workers = [
            Worker(self._core, driver, absorber, self._batches(driver, absorber)) for absorber in self._absorbers
        ]
        if self._stopped:
            return
        tasks = [self._loop.create_task(worker.run()) for worker in self._workers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _batches(self, driver: AsyncDriver, absorber: Absorber) -> MakeBatch:
        """A plain function gets batches with blocking methods: it runs in a thread."""
        core, spec, terms = self._core, absorber.spec, absorber.terms
        if absorber.blocking:
            from holdfast.sync.batch import Batch as BlockingBatch  # here, because the twin's client imports this file

            threads = core.thread_driver()
            return lambda taking: BlockingBatch(core, threads, spec, taking, terms)
        return lambda taking: Batch(core, driver, spec, taking, terms)

    def stop(self) -> None:
        """Take nothing more and finish what is under way. Any thread, any number of times."""
        self._stopped = True
        if self._loop is None:
            return
        for worker in self._workers:
            try:
                self._loop.call_soon_threadsafe(worker.stop)
            except RuntimeError:
                return  # it has ended
