"""The processes of a demonstration: started, heard, killed, frozen, replaced, and all gone in the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from holdfast import HoldfastError
from holdfast.cli.demo_nursery import Child, Nursery
from holdfast.cli.demo_plan import PAUSE, PRODUCERS, Strike
from holdfast.cli.demo_process import Task
from holdfast.cli.demo_tally import Tally

START_UP = 40.0
"""Seconds in which all processes must be ready, on a machine that has other things to do."""
IN_THE_MIDDLE = 1.0
"""How long a strike waits for its victim to have what it shall lose."""
REPLACED = 10.0
"""How long it waits for somebody who works, where all are frozen or just being replaced."""
GOODBYE = 5.0
CALM = "nothing"
OPENS = {"absorbed": "batch", "run": "run", "locked": "lock"}
CLOSES = {"left": "batch", "run left": "run", "unlocked": "lock"}
STARTING, WORKING, PAUSED, KILLED, ENDED = "starting", "working", "paused", "killed", "ended"


class Seat:
    """A place in the fleet: a process, and after a kill the next one."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task = task
        self.state = STARTING
        self.starts = 0
        self.did: Counter[str] = Counter()
        self.has: dict[str, set[str]] = {}
        self._log = folder / f"{task.role}-{task.number}.log"
        self._child: Child | None = None

    @property
    def name(self) -> str:
        return f"{self.task.role} {self.task.number + 1}"

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.code is None

    async def start(self, nursery: Nursery) -> Child:
        self.state, self.has = STARTING, {kind: set() for kind in OPENS.values()}
        self._child = child = await nursery.start(self._log)
        self.starts += 1
        # Not as an argument: everybody on the machine can read those, and the URL may have a password.
        child.tell(json.dumps(asdict(self.task)))
        return child

    def tell(self, line: str) -> None:
        if self._child is not None:
            self._child.tell(line)

    def signal(self, number: int) -> None:
        if self._child is not None:
            self._child.signal(number)

    def last_words(self) -> str:
        return last_words(self._log)


def last_words(log: Path) -> str:
    """The last line of what a process complained about."""
    with contextlib.suppress(OSError):
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else ""
    return ""


class Fleet:
    """Workers and producers. `async with`: at the end, however it comes, none of their processes is left."""

    def __init__(self, task: Task, folder: Path, tally: Tally, say: Callable[[str], None]) -> None:
        self.workers = [Seat(replace(task, role="worker", number=at), folder) for at in range(task.processes)]
        self.producers = [Seat(replace(task, role="producer", number=at), folder) for at in range(PRODUCERS)]
        self._tally = tally
        self._say = say
        self._news = asyncio.Event()
        self._listening: set[asyncio.Task[None]] = set()
        self._waking: set[asyncio.Task[None]] = set()
        self._closing = False
        self._nursery = Nursery(folder / "nursery.log")

    @property
    def seats(self) -> list[Seat]:
        return [*self.workers, *self.producers]

    async def __aenter__(self) -> Fleet:
        await self._nursery.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        for work in self._waking:
            work.cancel()
        await asyncio.gather(*self._waking, return_exceptions=True)
        await self._nursery.__aexit__()
        for work in self._listening:
            work.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)

    # -- what they do -------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Start all, and let the producers begin when everybody is ready. Raises HoldfastError if somebody is not."""
        try:
            async with asyncio.timeout(START_UP):
                for seat in self.seats:
                    await self._start(seat)
        except (TimeoutError, ChildProcessError):
            words = last_words(self._nursery.log)
            raise HoldfastError(f"try again, or with fewer processes: they could not be started. {words}") from None
        if not await self.until(lambda: all(seat.state != STARTING for seat in self.seats), START_UP):
            late = next(seat for seat in self.seats if seat.state == STARTING)
            raise HoldfastError(f"try again, or with fewer processes: {late.name} did not get ready in time")
        for seat in self.seats:
            if seat.state == ENDED:
                raise HoldfastError(f"find out why {seat.name} ended at once: {seat.last_words()}")
        for seat in self.producers:
            seat.tell("begin")

    async def until(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Wait for it, looking whenever somebody said something. False if it did not come true in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        return bool(condition())

    async def _start(self, seat: Seat) -> None:
        child = await seat.start(self._nursery)
        task = asyncio.create_task(self._listen(seat, child))
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)

    async def _listen(self, seat: Seat, child: Child) -> None:
        async for line in child.lines:
            if line.endswith(b"\n"):  # not one that a kill cut short
                self._heard(seat, json.loads(line))
        # After a kill the successor waits for this: what the dead one said last is heard before what comes next.
        code = await child.ended()
        struck, seat.state = seat.state == KILLED, ENDED
        self._news.set()
        if not (struck or self._closing or (seat.task.role == "producer" and code == 0)):
            self._tally.crashed.append(f"{seat.name} ended with {code}: {seat.last_words()}")
            self._say(f"{seat.name} ended by itself with {code}: {seat.last_words()}")

    def _heard(self, seat: Seat, line: dict[str, Any]) -> None:
        did = line["did"]
        if did == "ready":
            seat.state = WORKING
        elif did in OPENS:
            seat.has[OPENS[did]].add(str(line.get(OPENS[did], "")))
        elif did in CLOSES:
            seat.has[CLOSES[did]].discard(str(line.get(CLOSES[did], "")))
        seat.did[did] += len(line["messages"]) if did == "absorbed" else line.get("count", 1)
        self._tally.hear(line)
        self._news.set()

    # -- what is done to them -----------------------------------------------------------------------------------

    async def strike(self, strike: Strike) -> None:
        """Kill or freeze a worker as soon as it has what it shall lose, or a second later all the same."""
        seat = await self._victim(strike)
        if seat is None:
            self._say(f"nobody was there to {strike.kind}")
            return
        has = strike.during if seat.has[strike.during] else CALM
        middle = {"batch": "with a batch stored and not acknowledged", "run": "in the middle of a run",
                  "lock": "with a lock held", CALM: "with nothing of that kind in hand"}[has]  # fmt: skip
        if strike.kind == "pause":
            seat.signal(signal.SIGSTOP)
            seat.state = PAUSED
            self._tally.pauses += 1
            self._say(f"paused {seat.name} (pid {seat.pid}) {middle}, for {PAUSE:g} s")
            self._keep(self._wake(seat))
            return
        seat.state = KILLED
        seat.signal(signal.SIGKILL)
        self._tally.kills += 1
        self._say(f"killed {seat.name} (pid {seat.pid}) {middle}")
        self._keep(self._replace(seat))

    async def _victim(self, strike: Strike) -> Seat | None:
        """The one that the plan names, or the next one that works; best one that has it."""
        order = [*self.workers[strike.worker :], *self.workers[: strike.worker]]

        def ready() -> list[Seat]:
            return [seat for seat in order if seat.state == WORKING]

        def chosen() -> bool:
            return bool(ready()) and bool(ready()[0].has[strike.during])

        await self.until(ready, REPLACED)
        await self.until(chosen, IN_THE_MIDDLE)
        having = [seat for seat in ready() if seat.has[strike.during]]
        return next(iter([*having, *ready()]), None)

    def _keep(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)

    async def _wake(self, seat: Seat) -> None:
        await asyncio.sleep(PAUSE)
        seat.signal(signal.SIGCONT)
        if not seat.alive:
            return
        seat.state = WORKING
        seat.has = {kind: set() for kind in OPENS.values()}
        self._news.set()
        self._say(f"{seat.name} goes on, after its leases have ended")

    async def _replace(self, seat: Seat) -> None:
        await self.until(lambda: seat.state == ENDED, GOODBYE)
        await self._start(seat)
        self._say(f"{seat.name} is started again (pid {seat.pid})")

    # -- the end ------------------------------------------------------------------------------------------------

    async def all_said(self, seconds: float) -> None:
        """Wait until the producers are done. One that is not by then is ended, and the account says so."""
        await self.until(lambda: not any(seat.alive for seat in self.producers), seconds)
        for seat in self.producers:
            if seat.alive:
                self._tally.crashed.append(f"{seat.name} was not done in time")
                seat.state = KILLED
                seat.signal(signal.SIGKILL)

    async def calm(self) -> None:
        """Wait until those that were struck are back."""
        if self._waking:
            await asyncio.wait(list(self._waking))

    async def end(self) -> None:
        """Let the workers finish, and give their leases back; `async with` ends who does not."""
        self._closing = True
        for seat in self.workers:
            seat.signal(signal.SIGTERM)
        await self.until(lambda: not any(seat.alive for seat in self.workers), GOODBYE)
