"""A lease: the right to be the only one, until a deadline."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.engine.flow import Await, Flow
from holdfast.engine.keeper import Hold
from holdfast.engine.scope import AsyncScope
from holdfast.errors import Indeterminate, LeaseLost
from holdfast.keys import Id
from holdfast.locks import flows
from holdfast.locks.spec import Spec


class Lease:
    """One grant of a lock, read/write lock or semaphore.

    Between grant and deadline nobody else holds what it stands for, as long as the server keeps its memory. The
    deadline runs on this machine's monotonic clock from before the request was sent, so it ends no later than the
    server's. It is renewed in the background until released; when that fails it is lost, and whoever holds it is told.
    A process that was paused past the deadline may act before it is told: only the `fence`, checked at the resource,
    stops that.
    """

    __slots__ = ("__weakref__", "_core", "_count", "_driver", "_hold", "_scopes", "_spec", "name")

    def __init__(self, core: Core, driver: AsyncDriver, spec: Spec, hold: Hold, name: Id) -> None:
        self._core = core
        self._driver = driver
        self._spec = spec
        self._hold = hold
        hold.adopted = True
        self._count = 1
        self._scopes: list[AsyncScope] = []
        self.name = name

    def __repr__(self) -> str:
        state = f"lost: {self.lost_reason}" if self.lost else f"{self.remaining():.1f} s left"
        return f"<Lease {self.name!r} fence={self.fence} {state}>"

    def __del__(self) -> None:
        # Nobody can release it any more, so it must not be renewed for ever.
        self._hold.abandoned = True

    @property
    def token(self) -> str:
        """What proves ownership to the server. Keep it secret."""
        return self._hold.token

    @property
    def fence(self) -> int:
        """Higher than that of every earlier grant of this name. Send it with each write, and refuse lower ones."""
        return self._hold.fence

    def remaining(self) -> float:
        """Seconds until the deadline; 0.0 once lost or released."""
        if self._hold.over or self.lost:
            return 0.0
        return max(0.0, self._hold.deadline - self._core.clock())

    @property
    def lost(self) -> bool:
        """True once it ended without being released. It is also true from the deadline on, whoever noticed."""
        hold = self._hold
        if hold.lost_reason or hold.over:
            return bool(hold.lost_reason)
        return self._core.clock() >= hold.deadline or self._core.forked

    @property
    def lost_reason(self) -> str:
        """Why: `expired`, `not renewed in time`, `taken away`, `forced`, `max_hold`, `abandoned` or `forked`."""
        if self._hold.lost_reason or not self.lost:
            return self._hold.lost_reason
        return "forked" if self._core.forked else "expired"

    @property
    def released(self) -> bool:
        """True once it was given back in time."""
        return self._hold.over and not self._hold.lost_reason

    def check(self) -> None:
        """Raise LeaseLost if it is lost. Call it before a step that cannot be undone."""
        if self.lost:
            if self._hold.lose(self.lost_reason):
                self._core.end_lost(self._hold)
            raise flows.lost_error(self._hold, "lease/check")

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when it is lost, from whichever thread notices. Answers a function that stops watching."""
        return self._hold.watch(callback)

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until it is lost or released. Answers whether it was lost; False after `timeout` seconds too."""
        await self._driver.run(_until_over(self._core, self._hold, timeout))
        return self.lost

    async def release(self) -> None:
        """Give it back; the next live waiter is granted in the same step.

        Raises LeaseLost if it was no longer held, and Indeterminate if no answer came: then it ends by itself.
        Cancellation does not stop it. Releasing a second time does nothing."""
        if self._count > 1:
            self._count -= 1
            if self.lost:
                raise flows.lost_error(self._hold, "locks/release")
            return
        if self._count == 0:
            return
        self._count = 0
        await self._driver.run(flows.release(self._core, self._spec, self._hold))

    def _reenter(self, weight: int) -> bool:
        """Count one more holder inside the same task. False if this lease no longer holds."""
        if self._count == 0 or self.lost:
            return False
        if weight > self._spec.weight:
            raise flows.would_deadlock(self._spec.place.name, "release the read lock before asking for the write lock")
        self._count += 1
        return True

    def _remember(self, entry: Any) -> None:
        """Let the same task find it for re-entry."""
        self._hold.entry = entry
        self._core.entered[entry] = weakref.ref(self)

    def _enter(self) -> AsyncScope:
        """Runs from here under the lease: its loss reaches the code inside."""
        return AsyncScope(self._hold)

    async def _leave(self, scope: AsyncScope, error: BaseException | None) -> None:
        """End of the code that ran under the lease: release, and say if it was not protected to its end."""
        ours = await scope.leave(error)
        try:
            await self.release()
        except LeaseLost as lost:
            if error is None or ours:
                raise lost from error
            error.add_note(f"the lease on {self.name!r} was lost meanwhile ({lost.reason})")
        except Indeterminate:
            return  # the body ran under the lease to its end, and what is left on the server ends by itself
        else:
            if ours:
                raise flows.lost_error(self._hold, "lease/body") from error

    async def __aenter__(self) -> Self:
        self._scopes.append(self._enter())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(self._scopes.pop(), error)


def _until_over(core: Core, hold: Hold, timeout: float | None) -> Flow[None]:
    """Waits on a slot of the mailbox that the loss, or a look every second, wakes."""
    token = f"lost.{hold.token}"
    core.mailbox.expect(token)
    stop = hold.watch(lambda: core.mailbox.deliver(f"look {token}"))
    give_up = None if timeout is None else core.clock() + timeout
    try:
        while not hold.over and not hold.lost_reason:
            left = 1.0 if give_up is None else min(1.0, give_up - core.clock())
            if left <= 0:
                return
            yield Await(token, left)
    finally:
        stop()
        core.mailbox.forget(token)
