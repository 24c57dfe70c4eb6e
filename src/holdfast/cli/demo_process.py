"""One process of a demonstration: a worker that absorbs, runs and counts, or a producer. Started by `holdfast demo`.

It gets its task as the first line of standard input and says what it does on standard output, one JSON object on each
line. When standard input ends, whoever started it is gone, and so is this process at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from os import _exit as leave
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import (
    ActiveRun,
    Batch,
    Buffer,
    Fenced,
    Holdfast,
    HoldfastError,
    Indeterminate,
    Lease,
    LeaseLost,
    NotAcquired,
    Runs,
)
from holdfast.cli.demo_counter import Counter
from holdfast.cli.demo_plan import CAPACITY, COUNTERS, LEASE, Append, Start, draw
from holdfast.events import Event, Lost, RunFinished, RunTaken, Taken, TakenOver

if TYPE_CHECKING:
    from holdfast.memory import AbsorbableBatch, Memory, NewEntry

LIFE = 600.0
"""Seconds after which nothing of it is left on the server, however it ended."""


@dataclass(frozen=True, slots=True)
class Task:
    """What this process is to do."""

    role: str
    number: int
    url: str
    folder: str
    name: str
    """Of the buffer, the runs and the locks: nobody else's."""
    seed: int
    processes: int
    seconds: float
    kill: bool
    breaks: Sequence[str]
    """Mistakes to make on purpose, for the tests: `sink`, `claim`, `fence`, `resume`."""

    @property
    def memory(self) -> str:
        return f"sqlite:///{Path(self.folder, 'memory.db')}"

    @property
    def counters(self) -> Path:
        return Path(self.folder, "counters.db")

    def buffer(self, hf: Holdfast) -> Buffer:
        return hf.buffer(self.name, capacity=CAPACITY, ttl=LIFE)

    def runs(self, hf: Holdfast) -> Runs:
        return hf.runs(self.name, lease=LEASE, retention=LIFE, max_attempts=1000)


def say(did: str, **facts: Any) -> None:
    """One write, so that lines of several threads do not mix and what was said survives a kill."""
    os.write(1, json.dumps({"did": did, **facts}).encode() + b"\n")


class Lifeline:
    """Standard input: the task, then a word to begin, then nothing until whoever started us is gone."""

    def __init__(self) -> None:
        self._rest = b""
        self.task = Task(**json.loads(self._line()))

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            more = os.read(0, 65536)
            if not more:
                leave(1)
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def watch(self, begin: Callable[[], object]) -> None:
        """From now on, in a thread."""

        def watching() -> None:
            self._line()
            begin()
            while True:
                self._line()

        threading.Thread(target=watching, name="holdfast-orphan-watch", daemon=True).start()


# -- a producer -------------------------------------------------------------------------------------------------------


class Producer:
    """Does its share of the plan, each thing at its moment, and says what it was told."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def run(self, begin: asyncio.Event) -> None:
        task = self._task
        appends, starts = draw(task.seed, task.processes, task.seconds, task.kill).share(task.number)
        async with Holdfast(task.url, name=f"demo-producer-{task.number + 1}") as hf:
            say("ready")
            await begin.wait()
            began = time.monotonic()
            inbox, runs = task.buffer(hf), task.runs(hf)
            todo: list[Append | Start] = sorted([*appends, *starts], key=lambda one: one.at)
            for one in todo:
                await asyncio.sleep(max(0.0, began + one.at - time.monotonic()))
                if isinstance(one, Append):
                    await self._append(inbox, one)
                else:
                    await self._start(runs, one)
        say("done")

    async def _append(self, inbox: Buffer, one: Append) -> None:
        if "claim" in self._task.breaks and one.first % 40 == 0:
            say("appended", first=one.first, count=one.size, dropped={})
            return
        # All processes of a demonstration are on one machine, and its monotonic clock is the same for all of them.
        sent = round(time.monotonic(), 4)
        items = [{"text": str(number), "sent": sent} for number in range(one.first, one.first + one.size)]
        try:
            told = await inbox.extend(one.user, items)
        except Indeterminate:
            say("unknown", first=one.first, count=one.size)
        except HoldfastError as error:
            say("refused", first=one.first, count=one.size, error=str(error)[:200])
        else:
            say("appended", first=one.first, count=one.size, dropped=dict(told.dropped))

    async def _start(self, runs: Runs, one: Start) -> None:
        try:
            await runs.start(one.run, {"steps": one.steps})
        except Indeterminate:
            say("run unknown", run=one.run)
        except HoldfastError as error:
            say("run refused", run=one.run, error=str(error)[:200])
        else:
            say("started", run=one.run)


# -- a worker ---------------------------------------------------------------------------------------------------------


class Worker:
    """Absorbs batches, executes runs and counts under locks, until it is told to end."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._memory = _memory(task)
        self._counter = Counter(task.counters)
        self._chance = random.Random()  # noqa: S311 - only how long things take
        self._hf = Holdfast(
            task.url, name=f"demo-worker-{task.number + 1}", sweep=0.5, drain=3.0, observers=[heard]
        )  # fmt: skip

    async def run(self) -> None:
        hf, task = self._hf, self._task
        hf.absorber(
            task.buffer(hf), threshold=10, max_age=0.5, batch=20, concurrency=4, lease=LEASE, max_attempts=1000,
            backoff=0.05, backoff_most=1.0,
        )(self._remember)  # fmt: skip
        hf.runner(task.runs(hf), concurrency=4, resumable="resume" not in task.breaks)(self._think)
        async with self._memory, hf:
            counting = asyncio.create_task(self._count())

            def end() -> None:
                counting.cancel()
                hf.stop_work()

            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
            say("ready")
            working = asyncio.create_task(hf.work())
            # Whichever fails first takes the process with it: half a worker would look like a whole one.
            await asyncio.wait([working, counting], return_when=asyncio.FIRST_EXCEPTION)
            for one in (working, counting):
                if one.done() and not one.cancelled():
                    one.result()
            await working

    async def _other_work(self) -> None:
        """What else a handler has to do; time for a kill or a pause to hit it in the middle."""
        await asyncio.sleep(self._chance.uniform(0.05, 0.15))

    async def _remember(self, batch: Batch) -> None:
        sunk = Unrecognised(batch) if "sink" in self._task.breaks else batch
        key = f"{batch.key!r}/{batch.id}"
        await self._memory.absorb(sunk)
        now = time.monotonic()
        messages = [[int(one.data["text"]), round(now - one.data["sent"], 4)] for one in batch.messages]
        say("absorbed", batch=key, messages=messages)
        try:
            await self._other_work()
        finally:
            say("left", batch=key)

    async def _think(self, run: ActiveRun) -> dict[str, int]:
        say("run", run=run.id)
        try:
            for number in range((run.saved or 0) + 1, run.input["steps"] + 1):
                await self._other_work()
                await run.emit({"n": number})
                if number % 2 == 0:  # not each time: what comes after the last one is repeated by the next owner
                    await run.checkpoint(number)
            return {"n": run.input["steps"]}
        finally:
            say("run left", run=run.id)

    async def _count(self) -> None:
        """Read, think, write: without a lock and a fence, two at once would write the same number."""
        while True:
            number = self._chance.randrange(COUNTERS)
            try:
                async with self._locked(number) as lease:
                    await self._count_up(number, lease)
            except Fenced:
                say("fenced", counter=number)
            except (LeaseLost, NotAcquired):
                pass
            except HoldfastError:  # the server is away, and will be back
                await asyncio.sleep(0.2)
            finally:
                say("unlocked")

    @asynccontextmanager
    async def _locked(self, number: int) -> AsyncIterator[Lease]:
        lock = self._hf.lock(f"{self._task.name}:{number}", ttl=LEASE, wait=5.0)
        if "fence" not in self._task.breaks:
            async with lock as lease:
                yield lease
            return
        lease = await lock.acquire()  # and never looked at again
        yield lease
        await lease.release()

    async def _count_up(self, number: int, lease: Lease) -> None:
        fence = None if "fence" in self._task.breaks else lease.fence
        value = await asyncio.to_thread(self._counter.read, number, fence)
        say("locked", counter=number)
        await self._other_work()
        await asyncio.to_thread(self._counter.write, number, value + 1, fence)
        say("counted", counter=number, value=value + 1)


def heard(event: Event) -> None:
    """What happens to leases, said as it happens."""
    match event:
        case Taken(attempt=attempt):
            say("taken", again=attempt > 1)
        case RunTaken(attempt=attempt):
            say("run taken", again=attempt > 1)
        case RunFinished(run=run, state=state):
            say("run ended", run=run, state=state)
        case TakenOver():
            say("taken over")
        case Lost(what=what, reason=reason):
            say("lost", what=what, reason=reason)


# -- where messages go ------------------------------------------------------------------------------------------------


def _memory(task: Task) -> Memory:
    from holdfast.memory import Memory

    return Memory(task.memory, agents=[Careless()]) if "sink" in task.breaks else Memory(task.memory)


class Careless:
    """An agent that does not say which message an entry comes from. Only for the tests of the account."""

    name = "careless"

    async def run(self, batch: AbsorbableBatch) -> Sequence[NewEntry]:
        from holdfast.memory import NewEntry

        return [NewEntry("episodic", message.data["text"]) for message in batch.messages]


class Unrecognised:
    """A batch under an id that was never there before: what a sink sees that does not check the id."""

    def __init__(self, batch: Batch) -> None:
        self.buffer, self.key, self.fence, self.attempt = batch.buffer, batch.key, batch.fence, batch.attempt
        self.messages, self.pairs, self.check = batch.messages, batch.pairs, batch.check
        self.id = f"{batch.id}.{secrets.token_hex(8)}"


async def main() -> None:
    """Until it is done, or told to end."""
    lifeline = Lifeline()
    task, begin = lifeline.task, asyncio.Event()
    loop = asyncio.get_running_loop()
    lifeline.watch(lambda: loop.call_soon_threadsafe(begin.set))
    await (Producer(task).run(begin) if task.role == "producer" else Worker(task).run())
