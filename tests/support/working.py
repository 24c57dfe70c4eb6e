"""A client that works beside a test, on either twin: what the crews of absorbers and of runners share."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import holdfast.sync


class Working:
    """One client and its work."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        self.blocking = isinstance(hf, holdfast.sync.Holdfast)
        self.working: asyncio.Future[None] | None = None
        self.events: list[Any] = []
        hf.observe(self.events.append)

    def start(self) -> None:
        self.working = self.work()

    def work(self) -> asyncio.Future[None]:
        """Run it. A blocking one gets a thread that does not keep the tests from ending if it never returns."""
        loop = asyncio.get_running_loop()
        if not self.blocking:
            return loop.create_task(self.hf.work())
        ended = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(None) if error is None else ended.set_exception(error)

        def run() -> None:
            problem: BaseException | None = None
            try:
                self.hf.work()
            except BaseException as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the test is over
                loop.call_soon_threadsafe(settle, problem)

        threading.Thread(target=run, name="work", daemon=True).start()
        return ended

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A method of either twin."""
        result = await asyncio.to_thread(function, *args, **options) if self.blocking else function(*args, **options)
        return await result if inspect.isawaitable(result) else result

    @property
    def worker(self) -> Any:
        """What listens to signals, once it works."""
        (signalled,) = self.hf._core.mailbox.workers.values()
        return signalled.__self__

    async def stop(self) -> None:
        """Let it finish."""
        assert self.working is not None
        self.hf.stop_work()
        async with asyncio.timeout(15):
            await self.working

    async def close(self) -> None:
        if self.working is not None and not self.working.done():
            if self.blocking:
                self.hf.stop_work()
            else:
                self.working.cancel()
            await asyncio.wait([self.working], timeout=10)
            assert self.working.done(), "the work did not end"
        await self.call(self.hf.close)
