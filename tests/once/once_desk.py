"""Dedup for tests: the same test code for both twins, on one client each, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import HoldfastError
from holdfast.engine.scripts import Scripts
from support.actors import AsyncActor, Fleet, ThreadActor
from support.backends import Backend
from support.conditions import until

SHORT = 0.2
"""A lease of somebody who is going to die, and a window that is going to end."""


class Driven(Scripts):
    """The real scripts, with the time written into their text: so it works on a Cluster too."""

    def __init__(self) -> None:
        super().__init__()
        self.ms = 1_900_000_000_000

    def move(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)
        self._loaded.clear()

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        if name == "_time" and text is not None:
            assert "local time = call('TIME')" in text
            seconds, ms = divmod(self.ms, 1000)
            text = text.replace("local time = call('TIME')", f"local time = {{{seconds}, {ms * 1000}}}")
        return text


class Desk:
    """A client, run by an actor. Methods of the client are awaited, whichever twin it is."""

    def __init__(self, actor: AsyncActor | ThreadActor) -> None:
        self.actor = actor
        self.hf = actor.hf
        self.blocking = isinstance(actor, ThreadActor)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.hf, name)
        return lambda *args, **options: self.actor.do(lambda _: method(*args, **options))

    async def on(self, thing: Any, name: str, *args: Any, **options: Any) -> Any:
        """A method of something that this one was given."""
        return await self.actor.do(lambda _: getattr(thing, name)(*args, **options))

    # -- claims

    async def begin(self, *args: Any, **options: Any) -> Any:
        """Ask for an id without a body."""
        return await self.actor.do(lambda _: self.hf.claim(*args, **options).begin())

    async def state(self, *args: Any, **options: Any) -> str:
        """How a claim would go; one that is granted is given back."""
        claim = await self.begin(*args, **options)
        if claim.state == "mine":
            await self.on(claim, "release")
        return str(claim.state)

    async def dead(self, *args: Any, lease: float = SHORT, **options: Any) -> Any:
        """Claim it and never come back: its lease is not renewed, and ends soon."""
        claim = await self.begin(*args, lease=lease, **options)
        claim._hold.abandoned = True
        return claim

    def body(self, work: Callable[[Any], Any] | None, *args: Any, **options: Any) -> asyncio.Future[Any]:
        """Claim it, do this inside `with` (a plain function, or one that answers a coroutine), and leave."""
        return self.actor.start(lambda _: self._body(work or _state_of, self.hf.claim(*args, **options)))

    def _body(self, work: Callable[[Any], Any], claim: Any) -> Any:
        if not self.blocking:
            return self._async_body(work, claim)
        with claim:
            return work(claim)

    async def _async_body(self, work: Callable[[Any], Any], claim: Any) -> Any:
        async with claim:
            result = work(claim)
            return await result if inspect.isawaitable(result) else result

    def rest(self, claim: Any) -> Any:
        """As a body: goes on until the claim is lost, as each twin does."""
        if not self.blocking:
            return asyncio.Event().wait()
        ends = time.monotonic() + 10
        while not claim.lost and time.monotonic() < ends:
            time.sleep(0.005)
        return None

    # -- calls

    def calls(self, function: Callable[..., Any], key: Any = "{key}", **options: Any) -> Callable[..., Any]:
        """A function that is called once; what it answers is awaited."""
        made = self.hf.idempotent(key, **options)(function if self.blocking else _as_coroutine_function(function))
        return lambda *args, **kwargs: self.actor.start(lambda _: made(*args, **kwargs))

    # -- gates

    def gate(self, name: str = "venues", window: float | None = None, **options: Any) -> GateDesk:
        return GateDesk(self, self.hf.gate(name, window, **options))

    async def refuses(self, kind: type[HoldfastError], name: str, *args: Any, **options: Any) -> Any:
        with pytest.raises(kind) as caught:
            await getattr(self, name)(*args, **options)
        return caught.value


class GateDesk:
    """A gate, run by the actor of its desk."""

    def __init__(self, desk: Desk, gate: Any) -> None:
        self.desk = desk
        self.gate = gate

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.gate, name)
        return lambda *args, **options: self.desk.actor.do(lambda _: method(*args, **options))

    async def reasons(self, key: Any, *states: Any) -> list[str]:
        return [(await self.check(key, state)).reason for state in states]


class Held:
    """A function that has begun and goes on when it is told to: `go`."""

    def __init__(self, result: Any = "done", error: Exception | None = None) -> None:
        self.begun = 0
        self.go = threading.Event()
        self._result = result
        self._error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.begun += 1
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            assert self.go.wait(10)
            return self._answer()
        return self._soon()

    async def _soon(self) -> Any:
        await until(self.go.is_set)
        return self._answer()

    def _answer(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class Till:
    """Counts what it is asked to charge."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def charge(self, key: Any, amount: int = 1) -> Any:
        self.asked.append((key, amount))
        answer = self.answers.pop(0) if self.answers else {"receipt": len(self.asked)}
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _as_coroutine_function(function: Callable[..., Any]) -> Callable[..., Any]:
    async def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    called.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    called.__module__, called.__qualname__ = function.__module__, getattr(function, "__qualname__", "held")
    return called


def _state_of(claim: Any) -> str:
    return str(claim.state)


class Desks(Fleet):
    """Makes clients. `driven`: the gates of those made after it have a clock that the test moves."""

    def __init__(self, backend: Backend, api: str) -> None:
        super().__init__(backend.url, api)
        self.backend = backend
        self.driven: Driven | None = None

    def drive(self) -> Driven:
        self.driven = Driven()
        return self.driven

    async def desk(self, **settings: Any) -> Desk:
        """On a client of its own: another process, as far as the server can tell."""
        desk = Desk(await self.actor(**settings))
        if self.driven is not None:
            desk.hf._core.scripts = self.driven
        return desk

    async def two(self, **settings: Any) -> tuple[Desk, Desk]:
        return await self.desk(**settings), await self.desk(**settings)

    async def drop(self, desk: Desk) -> None:
        """This one is not needed any more."""
        await desk.actor.stop()
        self._actors.remove(desk.actor)
        await self.close_client(desk.hf)

    def lives(self) -> dict[str, int]:
        """Remaining ms of every key."""
        return self.backend.keys()

    @property
    def cancel(self) -> type[BaseException]:
        """How a caller is interrupted."""
        return asyncio.CancelledError if self.api == "async" else KeyboardInterrupt

    @staticmethod
    async def settled(desk: Desk) -> None:
        """What the client does in the background is done."""
        while working := set(getattr(desk.hf._open, "_background", ())):
            await asyncio.wait(working, timeout=5)
        if desk.blocking:
            await asyncio.wrap_future(desk.hf._core.keeper.submit(all_done))


async def all_done(driver: Any) -> None:
    """What threads have handed over to the keeper is done. For `Keeper.submit`."""
    while working := set(driver._background):
        await asyncio.wait(working)


async def closing(desks: Desks) -> AsyncIterator[Desks]:
    """Closing must leave no thread, no task and no key without an end."""
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    yield desks
    await desks.close()
    left = [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith("asyncio_")]
    assert not left, f"threads left behind: {left}"
    lost = [t for t in asyncio.all_tasks() if t not in tasks and t is not asyncio.current_task()]
    assert not lost, f"tasks left behind: {lost}"
