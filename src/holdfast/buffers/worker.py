"""A worker: finds users who are due and runs the handler on their batches.

It holds no list of users. For each of the buffer's shards it knows when to look next: at once after a signal, when the
shard's next user becomes due, and otherwise now and then, the less often the more workers there are. An append that
makes a user due wakes one idle worker; one that is full hands the signal on. So an idle fleet costs next to nothing,
and no worker is needed to watch over the others: a batch whose worker died becomes due when its lease ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import random
from collections.abc import Callable
from typing import Any

from holdfast.buffers import holding
from holdfast.buffers.absorber import Absorber
from holdfast.buffers.holding import Taking
from holdfast.buffers.spec import Shard
from holdfast.engine.aio import AsyncDriver
from holdfast.engine.calling import in_thread
from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, Listen, Together, call
from holdfast.engine.scope import AsyncScope
from holdfast.engine.signals import LOOK
from holdfast.errors import HoldfastError, NewerPayload
from holdfast.events import HandlerFailed

MakeBatch = Callable[[Taking], Any]
SLICE = 500
CONFIGURE_EVERY, UNHEARD = 3600.0, 60.0
"""How often the triggers are set again; and how often where signals do not come through."""
TROUBLE_FIRST, TROUBLE_MOST = 0.1, 5.0
COMPLAIN = 10.0
ERROR_TEXT = 500


class Worker:
    """One absorber in one process. `stop` lets it finish; cancelling `run` makes it hand back at once."""

    def __init__(self, core: Core, driver: AsyncDriver, absorber: Absorber, make_batch: MakeBatch) -> None:
        self._core = core
        self._driver = driver
        self._absorber = absorber
        self._make_batch = make_batch
        self._token = core.new_token()
        self._shards = absorber.spec.shards
        self._look_at = [0.0] * len(self._shards)
        self._passed: set[int] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._looking: set[int] = set()
        self._wake = asyncio.Event()
        self._prepare_again = asyncio.Event()
        self._stopping = False
        self._trouble = 0
        self._complained: tuple[type[Exception] | None, float] = (None, 0.0)
        self._blocking = absorber.blocking

    def stop(self) -> None:
        """Take nothing more; `run` returns when the handlers are done, or handed back after `drain` seconds."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Until stopped or cancelled."""
        self._home = asyncio.get_running_loop()
        self._core.mailbox.workers[self._token] = self._told
        background = asyncio.get_running_loop().create_task(self._keep_configured())
        try:
            await self._loop()
            await self._leave_all()  # who becomes due from now on is somebody else's
            if self._running:
                await asyncio.wait(set(self._running), timeout=self._core.settings.drain)
        finally:
            background.cancel()
            for task in self._running:
                task.cancel()
            await asyncio.gather(background, *self._running, return_exceptions=True)
            self._core.mailbox.workers.pop(self._token, None)
            await self._leave_all()

    # -- when to look where -------------------------------------------------------------------------------------

    async def _loop(self) -> None:
        loop, clock = asyncio.get_running_loop(), self._core.clock
        while not self._stopping:
            self._wake.clear()
            now = clock()
            free = self._absorber.concurrency - len(self._running)
            due = self._due(now)
            for number in due[: max(0, free)]:
                self._looking.add(number)
                self._look_at[number] = math.inf
                task = loop.create_task(self._look(self._shards[number]))
                self._running.add(task)
                task.add_done_callback(self._ended)
            for number in due[max(0, free) :]:
                self._pass_on(number)
            nearest = min(
                (
                    at
                    for number, at in enumerate(self._look_at)
                    if number not in self._looking and not (at <= now and number in self._passed)
                ),
                default=math.inf,
            )
            timer = None if nearest == math.inf else loop.call_later(max(0.0, nearest - clock()), self._wake.set)
            await self._wake.wait()
            if timer is not None:
                timer.cancel()

    def _due(self, now: float) -> list[int]:
        """Shards to look at, the longest overdue first."""
        due = [(at, number) for number, at in enumerate(self._look_at) if at <= now and number not in self._looking]
        return [number for _, number in sorted(due)] if len(due) > 1 else [number for _, number in due]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()
        self._wake.set()

    def _told(self, detail: str) -> None:
        """Signals may come in on another thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody works any more
            self._home.call_soon_threadsafe(self._signalled, detail)

    def _signalled(self, detail: str) -> None:
        """`SHARD MS`: somebody is due there in so many ms; `look`: something may have been missed."""
        now = self._core.clock()
        if detail == LOOK:
            self._look_at = [now] * len(self._shards)
            self._prepare_again.set()
        else:
            number, _, ms = detail.partition(" ")
            shard = int(number)
            self._look_at[shard] = min(self._look_at[shard], now + int(ms) / 1000)
        self._wake.set()

    def _pass_on(self, number: int) -> None:
        """We are full: the next idle worker should look there. Once, until we find nothing there ourselves."""
        if number not in self._passed:
            self._passed.add(number)
            self._driver.background(self._driver.run(self._leave(self._shards[number])))

    def _plan(self, number: int, found: holding.Look) -> None:
        """After a look that found nothing. What was signalled meanwhile stays."""
        sweep = self._core.settings.sweep
        # Memoryless, so that workers that were started together do not look together, and then for long not at all.
        rest = sweep * max(1, found.idle) * min(4.0, random.expovariate(1.0))
        # Far ahead only one of many needs to know when somebody will be due; alone, it is us.
        if found.idle <= 1 or found.next_ms < sweep * 2000:
            rest = min(rest, found.next_ms / 1000 + 0.001) if found.next_ms >= 0 else rest
        self._look_again(number, rest)
        if not found.configured:
            self._prepare_again.set()  # the server has lost its memory

    def _look_again(self, number: int, rest: float) -> None:
        self._look_at[number] = min(self._look_at[number], self._core.clock() + rest)
        self._wake.set()

    # -- one look -----------------------------------------------------------------------------------------------

    def _complain(self, error: Exception) -> None:
        """Each shard meets the same trouble: once in a while is enough."""
        kind, at = self._complained
        now = self._core.clock()
        if kind is not type(error) or now - at > COMPLAIN:
            self._complained = (type(error), now)
            self._core.warn(f"{self._absorber.spec.name}: looking for work failed: {error}")

    async def _look(self, shard: Shard) -> None:
        number = shard.number
        try:
            found = await self._driver.run(
                holding.claim(
                    self._core, self._absorber.spec, shard, self._absorber.terms, self._token, self._driver.home()
                )
            )
            self._trouble = 0
        except NewerPayload as error:
            self._look_again(number, 0.0)  # that user comes up later again; others may be due
            self._core.warn(f"{self._absorber.spec.name}: {error}")
            return
        except Exception as error:  # whatever it is, this shard must be looked at again
            self._trouble += 1
            pause = min(TROUBLE_MOST, TROUBLE_FIRST * 2.0 ** min(self._trouble, 10)) * (0.5 + random.random())  # noqa: S311
            self._look_again(number, pause)
            self._complain(error)
            return
        finally:
            self._looking.discard(number)
        if found.taking is None:
            self._passed.discard(number)
            self._plan(number, found)
            return
        # Somebody else may be due there: another slot can take that one while this one works.
        self._look_again(number, found.next_ms / 1000 if found.next_ms >= 0 else self._core.settings.sweep)
        await self._process(found.taking)
        self._look_again(number, 0.0)

    # -- one batch ----------------------------------------------------------------------------------------------

    async def _process(self, taking: Taking) -> None:
        tracing = self._core.tracing
        if tracing is None:
            await self._absorb(taking)
            return
        about = holding.about(self._absorber.spec, taking)
        with tracing.span("absorb", (message.trace for message in taking.messages), about) as failed:
            failed(await self._absorb(taking))

    async def _absorb(self, taking: Taking) -> str:
        """Answers which kind of error there was; nothing: none."""
        batch = self._make_batch(taking)
        scope = AsyncScope(taking.hold)
        limit = asyncio.timeout(self._absorber.timeout)
        error: BaseException | None = None
        try:
            async with limit:
                await self._call(batch)
        except (Exception, asyncio.CancelledError, SystemExit) as problem:
            error = problem
        ours = await scope.leave(error)
        if ours or taking.hold.lost_reason:
            return "LeaseLost"  # it is somebody else's now, or nobody's
        spec, task = self._absorber.spec, asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            # Stopped before the handler was done: hand the batch back, as if it had not been taken.
            await self._give_back(taking, 0.0, 0, "")
            raise error
        if error is not None:
            await self._failed(taking, error, limit.expired())
        elif not batch.done:
            try:
                await self._driver.run(holding.ack(self._core, spec, taking, None))
            except HoldfastError as problem:
                self._core.warn(f"{spec.name}: {problem}")
                error = problem
        return "" if error is None else "TimeoutError" if limit.expired() else type(error).__name__

    async def _give_back(self, taking: Taking, delay: float, attempts: int, error: str) -> None:
        # A thread may still be at work on it, and must see that it lost the batch.
        lost_by = "handed back" if self._blocking else ""
        await self._driver.run(
            holding.nack(self._core, self._absorber.spec, taking, delay, attempts, error, lost_by=lost_by)
        )

    async def _call(self, batch: Any) -> None:
        handler = self._absorber.handler
        result = await in_thread(lambda: handler(batch)) if self._blocking else handler(batch)
        if inspect.isawaitable(result):
            await result

    async def _failed(self, taking: Taking, error: BaseException, late: bool) -> None:
        absorber = self._absorber
        if late:
            text = f"TimeoutError: the handler took longer than {absorber.timeout:g} s"
        else:
            text = f"{type(error).__name__}: {error}"[:ERROR_TEXT]
        if self._core.events:
            user = str(holding.user_of(taking.place))
            self._core.events.emit(HandlerFailed(absorber.spec.name, user, str(taking.id), taking.attempt, text))
        if not self._core.events.observed:  # a mistake in a handler must be seen somewhere
            logging.getLogger("holdfast").warning(
                "a handler of %s failed, attempt %d", absorber.spec.name, taking.attempt, exc_info=error
            )
        delay = min(absorber.backoff_most, absorber.backoff * 2.0 ** min(taking.attempt - 1, 30))
        delay *= 0.5 + random.random() / 2  # noqa: S311
        await self._give_back(taking, delay, absorber.terms.attempts, text)

    # -- triggers and signals -----------------------------------------------------------------------------------

    async def _keep_configured(self) -> None:
        """Tell every shard the triggers, and listen there. Again now and then: the server may have forgotten."""
        while True:
            try:
                await self._driver.run(self._prepare())
                heard = all(self._driver.hub.listening(shard.signals + self._core.client_id) for shard in self._shards)
                rest = CONFIGURE_EVERY if heard else UNHEARD
            except Exception as error:
                self._core.warn(f"{self._absorber.spec.name}: setting the triggers failed: {error}")
                rest = self._core.settings.sweep
            self._look_at = [self._core.clock()] * len(self._shards)
            self._wake.set()
            self._prepare_again.clear()
            # Not `wait_for`: on Python 3.11 it swallows a cancellation that comes together with the event, and the
            # worker would wait for this task for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._prepare_again.wait()

    def _prepare(self) -> Flow[None]:
        results = yield Together([self._configure(shard) for shard in self._shards])
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _configure(self, shard: Shard) -> Flow[None]:
        yield Listen(shard.tag, shard.signals + self._core.client_id)
        script, cursor = self._core.scripts.get("buffers/configure"), 0
        while True:
            reply = yield from call(
                script, shard.tag, (shard.stat, shard.due), (shard.base, self._absorber.triggers, cursor, SLICE),
                clock=self._core.clock, until=self._core.clock() + self._core.settings.retry_for,
            )  # fmt: skip
            if reply[0] == b"same" or not reply[1]:
                return
            cursor = int(reply[1])

    def _leave(self, shard: Shard) -> Flow[Any]:
        return call(
            self._core.scripts.get("buffers/leave"), shard.tag, (shard.idle, shard.due), (shard.base, self._token),
            clock=self._core.clock, until=self._core.clock() + self._core.settings.call_timeout,
        )  # fmt: skip

    async def _leave_all(self) -> None:
        def together() -> Flow[None]:
            yield Together([self._leave(shard) for shard in self._shards])

        try:
            await self._driver.run(together())
        except HoldfastError:
            return  # whoever wakes us finds nobody listening
