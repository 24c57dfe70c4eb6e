"""How the loss of a lease reaches the code that runs under it.

On asyncio the body is cancelled, and the cancellation becomes `LeaseLost` where the body ends, so that it cannot be
taken for somebody else's cancellation. A thread cannot be stopped from outside: the body sees `lease.lost`, may call
`lease.check()`, and `LeaseLost` is raised where it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.engine.keeper import Hold


class AsyncScope:
    """Cancels the task that entered when the hold is lost, or its holder is asked to stop."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("enter a lock inside a task")
        self._task = task
        self._before = task.cancelling()
        self._cancels = 0
        self._left = False
        self._unwatch: Callable[[], None] = hold.watch(self._told)

    def _told(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            return  # the loop is closed, and the body with it

    def _cancel(self) -> None:
        if not self._left:
            self._cancels += 1
            self._task.cancel(f"lease lost: {self._hold.lost_reason}" if self._hold.lost_reason else "asked to stop")

    async def leave(self, error: BaseException | None) -> bool:
        """Answers True if `error` is only our own cancellation."""
        self._unwatch()
        self._left = True
        if not self._cancels:
            return False
        for _ in range(self._cancels - 1):
            self._task.uncancel()
        ours = self._task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError)
        if not isinstance(error, asyncio.CancelledError):
            # The body ended before the cancellation reached it: it would strike at the next await, so take it here.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                ours = self._task.cancelling() <= self._before
                if not ours:
                    raise
        return ours


class ThreadScope:
    """Nothing can be done to a running thread; its end is where it is told."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def leave(self, error: BaseException | None) -> bool:
        return False
