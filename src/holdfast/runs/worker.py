"""A worker: takes runs from the queue and executes them.

It is woken when there is one to take, and looks by itself when an owner's lease would be over: so a run whose worker
died is taken by the next one, and nobody has to watch over the others. A request to stop comes as a message; that none
is missed is seen to by asking, once a second, about the runs that are under way here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from holdfast.engine.aio import AsyncDriver
from holdfast.engine.calling import in_thread
from holdfast.engine.core import Core
from holdfast.engine.payload import encode, trace_of
from holdfast.engine.signals import LOOK
from holdfast.errors import (
    HoldfastError,
    InvalidPayload,
    LeaseLost,
    NewerPayload,
    RunStopped,
    ServerFull,
    UnreadablePayload,
)
from holdfast.events import RunStuck
from holdfast.keys import Id
from holdfast.runs import flows, owning
from holdfast.runs.owning import Given
from holdfast.runs.runner import Runner

MakeRun = Callable[[Given], Any]
Aside = Callable[[Callable[[AsyncDriver], Awaitable[Any]]], Awaitable[Any]]
AT_ONCE = 64
REST_MOST = 60.0
STOP_CHECK = 1.0
TROUBLE_FIRST, TROUBLE_MOST = 0.1, 5.0
LATER = 5.0
"""After how long a run that a newer version started is offered again: by then a newer worker may have looked."""
CHUNK = 256
HURRY = 2.0
"""How long a handler may clean up when its process is ending."""


class Outcome(NamedTuple):
    """What came of a run here."""

    word: str
    reason: str = ""
    result: bytes = b""
    delay: float = 0.0
    error: str = ""
    """Of which kind it was, where there was one."""


class RunWorker:
    """One runner in one process. `stop` lets it finish; cancelling `run` makes it hand back at once."""

    def __init__(self, core: Core, driver: AsyncDriver, runner: Runner, make_run: MakeRun, aside: Aside) -> None:
        self._core = core
        self._driver = driver
        self._runner = runner
        self._spec = runner.spec
        self._make_run = make_run
        self._aside = aside
        self._token = core.new_token()
        self._look_at = 0.0
        self._full = False
        self._running: set[asyncio.Task[None]] = set()
        self._active: dict[str, Any] = {}
        self._wake = asyncio.Event()
        self._check = asyncio.Event()
        self._stopping = False
        self._trouble = 0
        self._blocking = runner.blocking

    def stop(self) -> None:
        """Take nothing more; `run` returns when the handlers are done, or interrupted after `drain` seconds."""
        self._stopping = True
        for run in self._active.values():
            run.draining = True
        self._wake.set()

    async def run(self) -> None:
        """Until stopped or cancelled."""
        self._home = asyncio.get_running_loop()
        self._core.mailbox.workers[self._token] = self._told
        background = self._home.create_task(self._watch_stops())
        try:
            await self._loop()
            await self._leave()
            if self._running:
                await asyncio.wait(set(self._running), timeout=self._core.settings.drain)
        finally:
            background.cancel()
            for task in self._running:
                task.cancel()
            await asyncio.gather(background, *self._running, return_exceptions=True)
            self._core.mailbox.workers.pop(self._token, None)
            await self._leave()

    # -- when to look -------------------------------------------------------------------------------------------

    async def _loop(self) -> None:
        clock = self._core.clock
        while not self._stopping:
            self._wake.clear()
            free = self._runner.concurrency - len(self._running)
            if free > 0 and (self._full or clock() >= self._look_at):
                await self._take(min(free, AT_ONCE))
                continue
            if free == 0 and clock() >= self._look_at:
                await self._sweep()
                continue
            timer = self._home.call_later(max(0.0, self._look_at - clock()), self._wake.set)
            await self._wake.wait()
            timer.cancel()

    def _told(self, detail: str) -> None:
        """A run is there, or something may have been missed. Signals may come in on another thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody works any more
            self._home.call_soon_threadsafe(self._look_now, detail == LOOK)

    def _look_now(self, missed: bool) -> None:
        self._look_at = 0.0
        self._wake.set()
        if missed:
            self._check.set()

    async def _take(self, most: int) -> None:
        try:
            await self._driver.hear(self._spec.tag, self._spec.signals + self._core.client_id)
            self._look_at = float("inf")  # what is told from here on is looked at
            found = await self._driver.run(
                owning.take(
                    self._core, self._spec, self._token, most, self._runner.attempts, self._spec.lease,
                    self._driver.home(), back="uncounted" if self._runner.resumable else "failed",
                )
            )  # fmt: skip
        except HoldfastError as error:
            if isinstance(error, ServerFull):
                await self._sweep()  # that is not refused, and what lost its owner must not wait
            self._in_trouble("taking runs", error)
            return
        self._trouble = 0
        self._full = len(found.given) == most
        for given in found.given:
            task = self._home.create_task(self._own(given))
            self._running.add(task)
            task.add_done_callback(self._ended)
        self._plan(-1 if self._full else found.next_ms, found.idle)
        for run in found.stuck:
            await self._stuck(run)

    async def _sweep(self) -> None:
        """Full: nothing can be taken, but what lost its owner must not wait for that."""
        try:
            self._look_at = float("inf")
            self._plan(await self._driver.run(flows.sweep(self._core, self._spec)), 1)
        except HoldfastError as error:
            self._in_trouble("looking for lost runs", error)

    def _plan(self, next_ms: int, idle: int) -> None:
        """When to look next without being told. Everybody looks within half a lease, and so knows when the next one
        would be over; further away the looks are spread over the fleet."""
        rest = self._core.settings.sweep * max(1, idle) * min(4.0, random.expovariate(1.0))
        rest = min(rest, REST_MOST, max(0.05, self._spec.lease / 2))
        if next_ms >= 0:
            rest = min(rest, next_ms / 1000 + 0.001 + random.random() * 0.02)  # noqa: S311
        self._look_at = min(self._look_at, self._core.clock() + rest)

    def _in_trouble(self, what: str, error: Exception) -> None:
        self._trouble += 1
        pause = min(TROUBLE_MOST, TROUBLE_FIRST * 2.0 ** min(self._trouble, 10)) * (0.5 + random.random())  # noqa: S311
        self._full = False
        self._look_at = self._core.clock() + pause
        self._core.warn(f"{self._spec.name}: {what} failed: {error}")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()
        self._wake.set()

    async def _stuck(self, run: Id) -> None:
        if self._core.events:
            self._core.events.emit(RunStuck(self._spec.name, str(run), self._spec.stuck))
        if not self._core.events.observed:
            self._core.warn(f"{self._spec.name}: run {run!r} has made no progress for {self._spec.stuck:g} s")
        if self._runner.stop_stuck:
            try:
                await self._driver.run(flows.stop(self._core, self._spec, run, "stuck"))
            except HoldfastError as error:
                self._core.warn(f"{self._spec.name}: stopping a stuck run failed: {error}")

    async def _watch_stops(self) -> None:
        """A message to stop may be lost on its way: ask."""
        while True:
            # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_CHECK):
                    await self._check.wait()
            self._check.clear()
            holds = [run._given.hold for run in self._active.values()]
            for at in range(0, len(holds), CHUNK):
                with contextlib.suppress(HoldfastError):  # asked again in a second
                    await self._driver.run(
                        owning.flags(self._core, self._spec, holds[at : at + CHUNK], self._is_active)
                    )

    def _is_active(self, token: str) -> bool:
        return token in self._active

    async def _leave(self) -> None:
        flow = flows.ask(
            self._core, self._spec, "runs/leave", (self._spec.idle, self._spec.due), (self._token,),
            until=self._core.clock() + self._core.settings.call_timeout,
        )  # fmt: skip
        try:
            await self._driver.run(flow)
        except HoldfastError:
            return  # whoever wakes us finds nobody listening

    # -- one run ------------------------------------------------------------------------------------------------

    async def _own(self, given: Given) -> None:
        tracing = self._core.tracing
        if tracing is None:
            await self._carry_out(given)
            return
        with tracing.span("run", [trace_of(given.input)], owning.about(self._spec, given)) as failed:
            failed(await self._carry_out(given))

    async def _carry_out(self, given: Given) -> str:
        """Answers which kind of error there was; nothing: none."""
        try:
            run = self._make_run(given)
        except UnreadablePayload as error:
            newer = isinstance(error, NewerPayload)
            end = Outcome("uncounted", "", b"", LATER) if newer else Outcome("failed", f"cannot be read: {error}")
            self._core.warn(f"{self._spec.name}: run {given.place.run}: {error}")
            await self._driver.run(
                owning.settle(self._core, self._spec, given, 1, b"", end.word, end.reason, end.result, end.delay)
            )
            return type(error).__name__
        run.draining = self._stopping
        self._active[given.hold.token] = run
        try:
            outcome = await self._execute(run)
        finally:
            del self._active[given.hold.token]
        if outcome is None:
            return "LeaseLost"
        await self._settle(run, outcome)
        return outcome.error

    async def _execute(self, run: Any) -> Outcome | None:
        """Run the handler until it returns, is told to stop, takes too long or loses the run. None: it is lost."""
        hold, changed = run._given.hold, asyncio.Event()
        handler = self._home.create_task(self._call(run))
        handler.add_done_callback(lambda done: done.cancelled() or done.exception())  # also when nobody waits any more
        handler.add_done_callback(lambda _: changed.set())
        unwatch = hold.watch(lambda: self._tell(changed))
        late = False
        try:
            async with asyncio.timeout(self._runner.timeout):
                while not (handler.done() or hold.lost_reason or hold.stopping):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            late = True
        except asyncio.CancelledError:
            await self._interrupt(handler, 0.0 if self._blocking else min(self._runner.grace, HURRY))
            if hold.lost_reason:
                return None
            return await self._shut_down(run, handler)
        finally:
            unwatch()
        if not handler.done():
            # A plain function that lost its run may take long to see it, and must not keep the slot meanwhile.
            try:
                await self._interrupt(handler, 0.0 if self._blocking and hold.lost_reason else self._runner.grace)
            except asyncio.CancelledError:  # the process ends: no time to wait any longer
                if hold.lost_reason:
                    return None
                await self._settle(run, self._too_late() if late else self._outcome(run, handler))
                raise
        if hold.lost_reason:
            return None
        return self._too_late() if late else self._outcome(run, handler)

    def _too_late(self) -> Outcome:
        text = f"TimeoutError: the handler took longer than {self._runner.timeout:g} s"
        return Outcome("failed", text, error="TimeoutError")

    def _tell(self, changed: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):
            self._home.call_soon_threadsafe(changed.set)

    async def _interrupt(self, handler: asyncio.Task[Any], grace: float) -> None:
        """Cancel the handler and give it time to clean up. A plain function sees for itself that it should end."""
        if not self._blocking:
            handler.cancel()
        task = asyncio.current_task()
        assert task is not None
        asked = task.cancelling()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({handler}, timeout=grace)
        if not handler.done():
            handler.cancel()
            self._core.warn(f"{self._spec.name}: a handler did not end within {grace:g} s and was left behind")
        if task.cancelling() > asked:
            raise asyncio.CancelledError

    async def _shut_down(self, run: Any, handler: asyncio.Task[Any]) -> Outcome | None:
        """This process ends before the handler did: hand the run to another, or say why it ends."""
        done = handler.done() and not handler.cancelled() and handler.exception() is None
        if done or run.stopping:
            outcome = self._outcome(run, handler)
        elif self._runner.resumable:
            outcome = Outcome("uncounted", "worker shut down")
        else:
            outcome = Outcome("failed", "worker shut down")
        await self._settle(run, outcome)
        raise asyncio.CancelledError

    def _outcome(self, run: Any, handler: asyncio.Task[Any]) -> Outcome:
        if not handler.done() or handler.cancelled():
            cancelled = Outcome("failed", "the handler was cancelled", error="CancelledError")
            return Outcome("stopped") if run.stopping else cancelled
        error = handler.exception()
        if error is None:
            result = handler.result()
            try:
                payload = encode(run.result if result is None else result, self._spec.max_data)
            except InvalidPayload as problem:
                error = problem
            else:
                return Outcome("completed", "", payload)
        if isinstance(error, RunStopped):
            return Outcome("stopped")
        if isinstance(error, NewerPayload):
            return Outcome("uncounted", "", b"", LATER, "NewerPayload")
        text = f"{type(error).__name__}: {error}"
        if not self._core.events.observed:  # nobody observes: a mistake in a handler must still be seen somewhere
            logging.getLogger("holdfast").warning("a handler of %s failed", self._spec.name, exc_info=error)
        return Outcome("failed", text, error=type(error).__name__)

    async def _call(self, run: Any) -> Any:
        handler = self._runner.handler
        try:
            if self._blocking:
                return await in_thread(lambda: handler(run))
            return await handler(run)
        except SystemExit as error:  # of this handler, not of the process
            raise RuntimeError(f"SystemExit: {error}") from error

    async def _settle(self, run: Any, outcome: Outcome) -> None:
        try:
            await self._aside(
                lambda driver: run._outbox.finish(driver, outcome.word, outcome.reason, outcome.result, outcome.delay)
            )
        except LeaseLost:
            return  # it was said already
        except HoldfastError as error:
            self._core.warn(f"{self._spec.name}: {error}")
