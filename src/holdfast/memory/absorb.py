"""How a batch is absorbed: which agents run, side by side, and what happens when one fails or the lease is lost."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.errors import ConfigurationError, Fenced, HoldfastError, LeaseLost
from holdfast.keys import Id
from holdfast.memory.agents import Agent, run_agent
from holdfast.memory.batch import AbsorbableBatch
from holdfast.memory.entry import NewEntry

R = TypeVar("R")


class Ledger(Protocol):
    """What absorbing needs of a store. Both are blocking."""

    def done(self, batch: AbsorbableBatch) -> frozenset[str]:
        """The agents that are done with this batch."""

    def commit(
        self, batch: AbsorbableBatch, agent: str, entries: Sequence[NewEntry], *,
        unless: Callable[[], bool] | None = None,
    ) -> bool:  # fmt: skip
        """Store what one agent found, once."""


async def absorb(store: Ledger, batch: AbsorbableBatch, agents: Sequence[Agent]) -> None:
    """Run the agents that are not done, and commit each as it finishes.

    One that fails does not stop the others; the first failure is raised at the end, the others are its notes. Losing
    the batch to another worker (LeaseLost, Fenced) stops them all, and so does cancelling: after it nothing is
    committed, and nothing goes on behind the caller's back but plain functions that cannot be interrupted."""
    batch.check()
    done = await asyncio.to_thread(store.done, batch)
    tasks = {asyncio.create_task(_one(store, batch, agent)): agent.name for agent in agents if agent.name not in done}
    failures: list[tuple[str, BaseException]] = []
    waiting = set(tasks)
    try:
        while waiting:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(ended, key=list(tasks).index):
                if (error := _failure(task, tasks[task])) is not None:
                    failures.append((tasks[task], error))
            if any(_lost(error) for _, error in failures):
                break
    finally:
        for task in waiting:
            task.cancel()
        await _ended(waiting)
    if failures:
        raise _one_failure(failures)


async def _one(store: Ledger, batch: AbsorbableBatch, agent: Agent) -> None:
    entries = await run_agent(agent, batch)
    batch.check()
    await _commit(store, batch, agent.name, entries)


async def _commit(store: Ledger, batch: AbsorbableBatch, agent: str, entries: Sequence[NewEntry]) -> None:
    """Cancelled, the transaction is rolled back unless it has passed its last moment, and its end is waited for."""
    unwanted = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(store.commit, batch, agent, entries, unless=unwanted.is_set))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        unwanted.set()
        await _ended({work})
        raise


async def _ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all have ended, also when cancelled meanwhile: a thread cannot be left half-way."""
    left = [task for task in tasks if not task.done()]
    again = False
    while left:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError:
            again = True
        left = [task for task in left if not task.done()]
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: asyncio need not complain
    if again:
        raise asyncio.CancelledError


def _failure(task: asyncio.Task[None], name: str) -> BaseException | None:
    if task.cancelled():  # not by us: raised as it is it would look as if the caller were cancelled
        return HoldfastError(f"find out why the memory agent {name!r} cancelled itself")
    return task.exception()


def _lost(error: BaseException) -> bool:
    return isinstance(error, (LeaseLost, Fenced))


def _one_failure(failures: Sequence[tuple[str, BaseException]]) -> BaseException:
    """The first; but a lost batch before all others, because it asks for another reaction."""
    ordered = sorted(failures, key=lambda failure: not _lost(failure[1]))
    name, first = ordered[0]
    first.add_note(f"raised for the memory agent {name!r}")
    for name, error in ordered[1:]:
        first.add_note(f"the memory agent {name!r} failed too: {type(error).__name__}: {error}")
    return first


async def fences_of(things: Iterable[Any], user: Id) -> dict[str, int]:
    """Have each thing forget the user. Answers the fences of those that have them, by their names."""
    fences: dict[str, int] = {}
    for thing in things:
        if inspect.iscoroutinefunction(thing.forget):
            answer = await thing.forget(user)
        else:
            answer = await asyncio.to_thread(thing.forget, user)
            if inspect.isawaitable(answer):
                answer = await answer
        name = getattr(thing, "name", None)
        if isinstance(answer, int) and answer is not True and answer > 0 and isinstance(name, str) and name:
            fences[name] = max(answer, fences.get(name, 0))
    return fences


def blocking(work: Coroutine[Any, Any, R]) -> R:
    """Run to the end in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise ConfigurationError("use Memory inside an event loop: the blocking Store would stop the loop")
