"""Applications with a runner, written into a directory and started as real processes; and a reader beside them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from buffers.test_work_processes import Running
from holdfast import Event
from holdfast.sync import Holdfast
from holdfast.sync.runs import Runs

LEASE = 1.0

# Each line that a handler prints is one fact: what it got, how it ended.
APP = """
import asyncio, json, os, time
import holdfast as api
from holdfast import LeaseLost, RunStopped

hf = api.Holdfast({url!r}, sweep=0.2, drain={drain}, retry_for=5.0, call_timeout=1.0)
agent = hf.runs("agent", lease={lease}, max_attempts={attempts})

def say(what, run, **more):
    facts = dict(what=what, pid=os.getpid(), run=run.id, attempt=run.attempt, fence=run.fence, saved=run.saved)
    line = json.dumps({{**facts, "lost": run.lost, "stopping": run.stopping, "draining": run.draining, **more}}) + "\\n"
    os.write(1, line.encode())  # in one piece, whichever thread says it

def pause(run):
    return {first} if run.attempt == 1 else {then}

@hf.runner(agent, resumable={resumable}, concurrency=4, stop_grace=2.0)
{handler}
"""

# It says one thing and saves that, then it is busy, then it says another.
COROUTINE = """
async def handle(run):
    say("got", run)
    try:
        await run.emit({"word": "first", "fence": run.fence})
        await run.checkpoint((run.saved or 0) + 1)
        say("saved", run)
        await asyncio.sleep(pause(run))
        await run.emit({"word": "last", "fence": run.fence})
    except asyncio.CancelledError:
        say("interrupted", run)
        try:
            await run.emit({"word": "late", "fence": run.fence})
        except LeaseLost:
            say("refused", run)
        raise
    say("done", run)
    return run.saved
"""
PLAIN = """
def handle(run):
    say("got", run)
    run.emit({"word": "first", "fence": run.fence})
    run.checkpoint((run.saved or 0) + 1)
    say("saved", run)
    end = time.monotonic() + pause(run)
    try:
        while time.monotonic() < end:
            run.check()
            time.sleep(0.01)
    except (LeaseLost, RunStopped):
        say("interrupted", run)
        try:
            run.emit({"word": "late", "fence": run.fence})
        except LeaseLost:
            say("refused", run)
        raise
    run.emit({"word": "last", "fence": run.fence})
    say("done", run)
    return run.saved
"""
BLOCKING = """
async def handle(run):
    say("got", run)
    time.sleep(pause(run))  # the event loop stands still; only the keeper's thread runs
    await run.checkpoint(1)
    say("done", run)
    return run.attempt
"""
FORKING = """
def handle(run):
    say("got", run)
    run.emit("before")
    run.flush()
    run.emit("on its way")
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        import signal, threading
        signal.alarm(8)  # a child that waits for ever is ended, and has said nothing
        report = {"lost": run.lost, "left": run.remaining()}
        for name, args in (("check", ()), ("emit", ("child",)), ("flush", ()), ("checkpoint", (1,))):
            try:
                getattr(run, name)(*args)
                report[name] = "done"
            except Exception as error:
                report[name] = type(error).__name__
            os.write(write, (json.dumps(report) + "\\n").encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(child, 0)
    time.sleep(pause(run))
    run.emit("after")
    run.checkpoint("parent")
    say("done", run, child=json.loads(lines[-1]) if lines else {})
    return "parent"
"""


class RunSite:
    """A directory with an application in it."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url

    def write(self, handler: str = COROUTINE, **options: Any) -> RunSite:
        values = {"first": 60, "then": 0, "drain": 5.0, "lease": LEASE, "attempts": 5, "resumable": True, **options}
        text = APP.format(url=self.url, handler=handler.strip(), **values)
        (self.directory / "app.py").write_text(text)
        return self

    def run(self, *options: str) -> Running:
        return Running(self.directory, *options)

    def script(self, text: str) -> Running:
        (self.directory / "main.py").write_text(text)
        return Running(self.directory, command=(sys.executable,), target="main.py")


class Reader:
    """Reads a run from its beginning to its end, in a thread of the test's process."""

    def __init__(self, runs: Runs, run: str) -> None:
        self.events: list[Event] = []
        self.problem: BaseException | None = None
        self._runs = runs
        self._run = run
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self.events.extend(self._runs.events(self._run, timeout=30))
        except BaseException as error:
            self.problem = error

    def end(self, within: float = 10.0) -> list[Event]:
        """All it saw, once it saw the end."""
        self._thread.join(within)
        assert not self._thread.is_alive(), f"no end within {within} s, after {self.events}"
        assert self.problem is None, self.problem
        assert [event.kind for event in self.events].count("end") == 1
        assert self.events == list(self._runs.events(self._run)), "it saw what is stored"
        return self.events


@contextlib.contextmanager
def runs_on(url: str) -> Iterator[Runs]:
    with Holdfast(url) as hf:
        yield hf.runs("agent", lease=LEASE)


def words(events: list[Event]) -> list[Any]:
    """What was said, with the attempts that began and the end."""
    said = {
        "data": lambda event: event.data["word"],
        "resumed": lambda event: event.data["attempt"],
        "end": lambda event: event.data["state"],
    }
    return [said[event.kind](event) for event in events]
