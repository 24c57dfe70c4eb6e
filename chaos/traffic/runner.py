"""Executes runs, and writes down what came of each step; with the guard off, without what makes a lost owner stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any

import holdfast.runs.active
import holdfast.sync.active
from chaos.history.journal import READY, Journal
from chaos.traffic.roles import collections
from holdfast import Holdfast
from holdfast.engine.keeper import Hold
from holdfast.engine.scripts import Scripts
from holdfast.events import RunFinished, RunReturned

SAFEGUARD = "return token == holder and owned()"
CONCURRENCY = 4


class Careless(Scripts):
    """Whoever once had a run may write to it for ever."""

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        if (room, name) == ("runs", "_record"):
            if text is None or SAFEGUARD not in text:
                raise LookupError("the script has another safeguard now: turn that one off")
            text = text.replace(SAFEGUARD, "return state ~= QUEUED")
        return text


def take_the_guard_off(hf: Holdfast) -> None:
    """On the server; and here, where a process knows by its own clock that its lease is over."""
    hf._core.scripts = Careless()
    Hold.lose = lambda self, reason: False  # type: ignore[method-assign]
    for module in (holdfast.runs.active, holdfast.sync.active):
        module.ActiveRun.lost = property(lambda self: False)  # type: ignore[method-assign, assignment]


class Handlers:
    """A run goes through its steps; after each it emits numbered events and saves how far it is."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def _begin(self, run: Any) -> tuple[int, int]:
        saved = run.saved or {"n": 0, "done": 0}
        self._journal.write("began", run.id, attempt=run.attempt, fence=run.fence, saved=saved["n"])
        return saved["n"], saved["done"]

    def _ran(self, run: Any, step: str) -> str:
        """What a step makes: nobody else will ever make the same."""
        value = secrets.token_hex(8)
        self._journal.write("ran", run.id, step=step, value=value, fence=run.fence)
        return value

    def _event(self, run: Any, n: int) -> dict[str, Any]:
        return {"n": n, "attempt": run.attempt, "fence": run.fence}

    def _step(self, run: Any, step: str, value: str) -> None:
        self._journal.write("step", run.id, step=step, value=value, fence=run.fence)

    def _saved(self, run: Any, n: int) -> None:
        self._journal.write("saved", run.id, n=n, fence=run.fence)

    def left(self, run: Any, error: BaseException | None) -> None:
        self._journal.write("left", run.id, fence=run.fence, lost=run.lost, how=type(error).__name__)

    async def agent(self, run: Any) -> Any:
        (n, done), todo, values = self._begin(run), run.input, {}

        async def work(step: str) -> str:
            await asyncio.sleep(todo["seconds"])
            return self._ran(run, step)

        for at in range(todo["steps"]):
            name = f"s{at}"
            values[name] = await run.step(name, work, name)
            self._step(run, name, values[name])
            if at < done:
                continue
            for _ in range(todo["events"]):
                n += 1
                await run.emit(self._event(run, n))
                if n % 3 == 0:
                    await asyncio.sleep(0.03)
            if todo["fails"] == at:
                raise ValueError("on purpose")
            if at % 2:  # not each time: what comes after the last one is repeated
                await run.checkpoint({"n": n, "done": at + 1})
                self._saved(run, n)
        return {"n": n, "values": values}

    def plain(self, run: Any) -> Any:
        (n, done), todo, values = self._begin(run), run.input, {}

        def work(step: str) -> str:
            time.sleep(todo["seconds"])
            return self._ran(run, step)

        for at in range(todo["steps"]):
            name = f"s{at}"
            run.check()
            values[name] = run.step(name, work, name)
            self._step(run, name, values[name])
            if at < done:
                continue
            for _ in range(todo["events"]):
                n += 1
                run.emit(self._event(run, n))
            if todo["fails"] == at:
                raise ValueError("on purpose")
            if at % 2:
                run.checkpoint({"n": n, "done": at + 1})
                self._saved(run, n)
        return {"n": n, "values": values}


def register(hf: Holdfast, journal: Journal) -> None:
    handlers, runs = Handlers(journal), collections(hf)

    async def agent(run: Any) -> Any:
        error: BaseException | None = None
        try:
            return await handlers.agent(run)
        except BaseException as caught:
            error = caught
            raise
        finally:
            handlers.left(run, error)

    def plain(run: Any) -> Any:
        error: BaseException | None = None
        try:
            return handlers.plain(run)
        except BaseException as caught:
            error = caught
            raise
        finally:
            handlers.left(run, error)

    hf.runner(runs["agent"], concurrency=CONCURRENCY, resumable=True, stop_grace=0.5)(agent)
    hf.runner(runs["plain"], concurrency=CONCURRENCY, resumable=True, stop_grace=2.0)(plain)
    hf.runner(runs["once"], concurrency=CONCURRENCY, stop_grace=0.5)(agent)

    def observe(event: Any) -> None:
        if isinstance(event, RunFinished):
            journal.write("finished", event.run, state=event.state, attempt=event.attempt)
        elif isinstance(event, RunReturned):
            journal.write("returned", event.run, attempt=event.attempt)

    hf.observe(observe)


async def main(url: str, folder: Path, guard: bool) -> None:
    hf = Holdfast(url, call_timeout=0.5, retry_for=10.0, connect_timeout=1.0, sweep=0.5, drain=0.3)
    if not guard:
        take_the_guard_off(hf)
    journal = Journal(folder, "worker")
    register(hf, journal)
    async with hf:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, hf.stop_work)
        journal.write(READY, "")
        await hf.work()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--guard", choices=("on", "off"), default="on")
    options = parser.parse_args()
    asyncio.run(main(options.url, options.folder, options.guard == "on"))
    os._exit(0)  # a plain function that lost its run may still be asleep
