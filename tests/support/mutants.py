"""Pitfalls as tests: a check that holds on the code as it is, and fails when the bug is put back.

    cases = Pitfalls()

    @cases.pitfall(17, last_one_signs=lua("locks/acquire", "…", "…"))
    async def the_winners_mark_is_its_own(world):
        …
        assert mark == "alpha", "PITFALL 17: the loser has overwritten the winner's mark"

A bug is a function of the world that puts it back before any client is made. The message of every assertion in a check
starts with its PITFALL, so that a check which fails for another reason does not count as one that found the bug.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
import redis

import holdfast
import holdfast.sync
from holdfast import HoldfastError, Lease, LockInfo, NotAcquired
from holdfast.engine.scripts import Scripts
from holdfast.locks.lock import Lock
from holdfast.locks.spec import Place
from holdfast.testing import FaultProxy, LocalServer
from support.backends import Backends
from support.conditions import patience, patiently, until

Bug = Callable[["World"], None]
Check = Callable[["World"], Awaitable[None]]
Edit = tuple[str, str, str]


class Case(NamedTuple):
    number: int
    check: Check
    bug: Bug | None


class Pitfalls:
    """The checks of one file. A check has one bug or several, each of which alone must make it fail."""

    def __init__(self) -> None:
        self._known: list[tuple[int, Check, dict[str, Bug]]] = []

    def pitfall(self, number: int, **bugs: Bug) -> Callable[[Check], Check]:
        def add(check: Check) -> Check:
            self._known.append((number, check, bugs))
            return check

        return add

    def holding(self) -> list[Any]:
        return [pytest.param(Case(n, check, None), id=f"{n:02}-{check.__name__}") for n, check, _ in self._known]

    def with_bugs(self) -> list[Any]:
        return [
            pytest.param(Case(number, check, bug), id=f"{number:02}-{check.__name__}-{name}")
            for number, check, bugs in self._known
            for name, bug in bugs.items()
        ]


PATIENT = 5.0
"""A check waits at least twice as long as its condition takes on a machine at rest, and with its bug put back all of
that is waited for. Where the check must hold the machine may be busy: so many times as long, which costs nothing."""


async def holds(case: Case, backends: Backends) -> None:
    with patience(PATIENT):
        async with World(backends) as world:
            await case.check(world)


async def fails(case: Case, backends: Backends) -> None:
    """The check must fail, and say that it is because of its pitfall.

    On a busy machine a bug about who is woken may go unnoticed by chance, when somebody looks by himself at that time.
    Twice it does not."""
    for last in (False, True):
        async with World(backends) as world:
            case.bug(world)
            try:
                await case.check(world)
            except AssertionError as error:
                if f"PITFALL {case.number}:" not in str(error):
                    raise
                return
        if last:
            pytest.fail(f"the bug of pitfall {case.number} was not noticed, twice")


# -- how bugs are put back ------------------------------------------------------------------------------------------


class Edited(Scripts):
    """The scripts with some of their text replaced. Text that is no longer there is an error: the bug has rotted."""

    def __init__(self, edits: list[Edit]) -> None:
        super().__init__()
        self._edits = edits

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        for place, old, new in self._edits:
            if place == f"{room}/{name}":
                if text is None or old not in text:
                    raise LookupError(f"{place} has no {old!r} any more: write this bug anew")
                text = text.replace(old, new)
        return text


def lua(*edit: str) -> Bug:
    """Replace text in scripts: file, old text, new text, and so on for further edits."""
    edits = [edit[at : at + 3] for at in range(0, len(edit), 3)]
    return lambda world: world.edits.extend(edits)


def patch(owner: Any, name: str, value: Any) -> Bug:
    """Replace a method or a function."""
    return lambda world: world.patch.setattr(owner, name, value)


def before_all(line: str) -> Bug:
    """Python to run first in the processes that a check starts."""
    return lambda world: world.prelude.append(line)


# -- where checks run -----------------------------------------------------------------------------------------------


class World:
    """Clients, proxies, servers, processes and tasks of one check, all gone at its end."""

    def __init__(self, backends: Backends) -> None:
        self.backends = backends
        self.patch = pytest.MonkeyPatch()
        self.edits: list[Edit] = []
        self.prelude: list[str] = []
        self.clients: list[Any] = []
        self._proxies: list[FaultProxy] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.backends.get("valkey").flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.patch.undo()
        for proxy in self._proxies:
            proxy.heal()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        self.backends.get("valkey").flush()  # what a bug left behind is nobody else's

    @property
    def url(self) -> str:
        return self.backends.get("valkey").url

    def redis(self) -> redis.Redis:
        """The server that all checks share, with nothing in between."""
        return self.enter(contextlib.closing(self.backends.get("valkey").owner.client()))

    async def client(self, url: str | None = None, **settings: Any) -> holdfast.Holdfast:
        made = holdfast.Holdfast(url or self.url, **settings)
        made._core.scripts = Edited(self.edits)
        self.clients.append(made)
        return await self._stack.enter_async_context(made)

    async def blocking(self, url: str | None = None, edits: tuple[Edit, ...] = (), **settings: Any) -> Any:
        made = holdfast.sync.Holdfast(url or self.url, **settings)
        made._core.scripts = Edited([*self.edits, *edits])
        await asyncio.to_thread(made.open)
        self._stack.push_async_callback(asyncio.to_thread, made.close)
        return made

    def proxy(self, server: LocalServer | None = None) -> FaultProxy:
        behind = server or self.backends.get("valkey").owner
        made = self.enter(FaultProxy(behind.host, behind.port))
        self._proxies.append(made)
        return made

    def server(self, **options: Any) -> LocalServer:
        """A server of its own, for checks that mistreat it."""
        return self.enter(LocalServer(**options))

    def enter(self, thing: Any) -> Any:
        """Anything else with an end."""
        return self._stack.enter_context(thing)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    async def python(self, code: str, *arguments: str, **environ: str) -> asyncio.subprocess.Process:
        """A process of its own, in which the bug is put back too."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "\n".join([*self.prelude, code]), *arguments, env={**os.environ, **environ},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

        async def end() -> None:
            if process.returncode is None:
                process.kill()
            with contextlib.suppress(TimeoutError):  # a child of its own may still have the other end
                await asyncio.wait_for(process.communicate(), 5)

        self._stack.push_async_callback(end)
        return process

    def server_with_clock(self) -> tuple[LocalServer, Clock]:
        """A real server whose wall clock can be moved while it runs; what it waits by goes on as before."""
        found = glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
        if not found:
            if os.environ.get("CI"):
                pytest.fail("CI must have libfaketime: tools/system-packages installs it")
            pytest.skip("libfaketime is not installed")
        clock = Clock(Path(self.enter(tempfile.TemporaryDirectory(prefix="holdfast-clock-"))) / "offset")
        environment = {
            "LD_PRELOAD": found[0],
            "FAKETIME_TIMESTAMP_FILE": str(clock.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return self.server(env=environment), clock


class Clock:
    """The wall clock of one server."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.move(0)

    def move(self, seconds: int) -> None:
        """So far from the true time, in one step: the server reads the file whenever it looks at the clock."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self.file)


# -- what checks say ------------------------------------------------------------------------------------------------


async def must(work: Awaitable[Any], why: str, within: float = 5.0) -> Any:
    """It succeeds in time, or the check fails with this message."""
    try:
        async with asyncio.timeout(patiently(within)):
            return await work
    except (HoldfastError, TimeoutError) as error:
        raise AssertionError(f"{why} ({error!r})") from error


async def attempt(lock: Lock, wait: float = 0) -> Lease | None:
    try:
        return await lock.acquire(wait=wait)
    except NotAcquired:
        return None


def fences(info: LockInfo) -> list[int]:
    """Of those who hold it now."""
    return [holder.fence for holder in info.holders if holder.remaining > 0]


def place_of(client: Any, name: Any) -> Place:
    return client.lock(name)._spec.place


async def waiters(client: holdfast.Holdfast, name: str, count: int) -> None:
    async def so_many() -> bool:
        return (await client.inspect(name)).waiting == count

    await until(so_many, what=f"{count} in the queue")


async def settled(client: holdfast.Holdfast) -> None:
    """What the client does in the background is done."""
    while working := set(client._open._background):
        await asyncio.wait(working, timeout=5)
