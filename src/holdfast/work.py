"""Runs what was registered on a client, until it is stopped: the part that both twins share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.buffers.absorber import Absorber
from holdfast.buffers.batch import Batch
from holdfast.buffers.worker import MakeBatch, Worker
from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.engine.threads import ThreadDriver
from holdfast.errors import ConfigurationError
from holdfast.runs.active import ActiveRun
from holdfast.runs.runner import Runner
from holdfast.runs.worker import Aside, MakeRun, RunWorker

END_SECONDS = 10.0


class Other(Protocol):
    """Whatever else works in the background: it is given a driver, runs, and is stopped."""

    def use(self, driver: AsyncDriver) -> None:
        """With whom it talks to the server; before `run`."""

    async def run(self) -> None:
        """Until stopped or cancelled."""

    def stop(self) -> None:
        """Finish what is under way, and no more."""


class Work:
    """The workers of one client in this process. `stop` and `end` may be called from any thread."""

    def __init__(
        self, core: Core, absorbers: Sequence[Absorber], runners: Sequence[Runner], others: Sequence[Other]
    ) -> None:
        if not (absorbers or runners or others):
            raise ConfigurationError(
                "register something first: decorate a handler with `@hf.absorber(buffer)` or `@hf.runner(runs)`"
            )
        self._core = core
        self._absorbers = absorbers
        self._runners = runners
        self._others = others
        self._workers: list[Worker | RunWorker | Other] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = threading.Event()
        self._threads: list[ThreadDriver] = []
        self._over = threading.Event()

    async def run(self, driver: AsyncDriver) -> None:
        """Until stopped; cancelling hands back at once what is under way."""
        self._loop = asyncio.get_running_loop()
        try:
            if self._stopped.is_set():
                return
            self._workers = [
                *(Worker(self._core, driver, one, self._batches(driver, one)) for one in self._absorbers),
                *(RunWorker(self._core, driver, one, *self._runs(driver, one)) for one in self._runners),
                *self._others,
            ]
            for other in self._others:
                other.use(driver)
            self._tasks = [self._loop.create_task(worker.run()) for worker in self._workers]
            if self._stopped.is_set():  # meanwhile, by another thread or a signal
                self.stop()
            await self._finish()
        finally:
            for threads in self._threads:
                threads.close()
            self._over.set()

    async def _finish(self) -> None:
        """One worker that fails ends all of them; one that was ended from outside is no failure."""
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if not task.cancelled():
                    task.result()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _batches(self, driver: AsyncDriver, absorber: Absorber) -> MakeBatch:
        """A plain function gets batches with blocking methods: it runs in a thread."""
        core, spec, terms = self._core, absorber.spec, absorber.terms
        if absorber.blocking:
            from holdfast.sync.batch import Batch as BlockingBatch  # here, because the twin's client imports this file

            threads = core.thread_driver()
            self._threads.append(threads)
            return lambda taking: BlockingBatch(core, threads, spec, taking, terms)
        return lambda taking: Batch(core, driver, spec, taking, terms)

    def _runs(self, driver: AsyncDriver, runner: Runner) -> tuple[MakeRun, Aside]:
        """A plain function gets runs with blocking methods, whose events are sent from the keeper's loop."""
        core, spec = self._core, runner.spec
        if runner.blocking:
            from holdfast.sync.active import (
                ActiveRun as BlockingRun,  # here, because the twin's client imports this file
            )

            threads = core.thread_driver()
            self._threads.append(threads)
            return (
                lambda given: BlockingRun(core, threads, spec, given),
                lambda work: asyncio.wrap_future(core.keeper.submit(work)),
            )
        return lambda given: ActiveRun(core, driver, spec, given), lambda work: work(driver)

    def stop(self) -> None:
        """Take nothing more and finish what is under way. Any number of times."""
        self._stopped.set()
        for worker in self._workers:
            self._tell(worker.stop)

    def end(self) -> None:
        """Hand back at once what is under way, and wait until that is done. Blocking."""
        self.stop()
        for task in self._tasks:
            self._tell(task.cancel)
        if self._loop is not None:
            self._over.wait(END_SECONDS)

    def _tell(self, what: Callable[[], object]) -> None:
        if self._loop is not None and not self._over.is_set():
            try:
                self._loop.call_soon_threadsafe(what)
            except RuntimeError:
                return  # it has ended
