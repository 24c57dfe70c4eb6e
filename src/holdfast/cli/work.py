"""`holdfast work`: runs what an application registered, in this process or in several that it looks after."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import holdfast
import holdfast.sync
from holdfast import ConfigurationError
from holdfast.observe import write_logs

QUICK = 5.0
"""A process that ended sooner than this did not get far: the next start waits longer each time."""
PAUSE_FIRST, PAUSE_MOST = 0.5, 30.0
MARGIN = 5.0
CONFIGURATION = 2
"""The exit code of a mistake that starting again does not mend."""


def load(target: str) -> Any:
    """The client that `module:name` names, or that the function of that name makes."""
    module, _, path = target.partition(":")
    if not module or not path:
        raise ConfigurationError(f"name the client as module:variable, like app.jobs:hf, not {target!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"check the module's name and the current directory: {error}") from error
    except AttributeError as error:
        raise ConfigurationError(f"check the variable's name: {error}") from None
    if inspect.isfunction(found):  # one that makes it
        found = found()
    if not isinstance(found, (holdfast.Holdfast, holdfast.sync.Holdfast)):
        raise ConfigurationError(f"name a Holdfast client: {target} is a {type(found).__name__}")
    return found


def run_one(client: Any, supervised: bool) -> None:
    """Work until SIGTERM or SIGINT, then drain. Below a node, what is logged looks as the node's own."""
    form = os.environ.get("HOLDFAST_NODE_LOG_FORMAT")
    if supervised and form and not logging.getLogger("holdfast").hasHandlers():  # the application has set up none
        write_logs(form, os.environ.get("HOLDFAST_NODE_LOG_LEVEL", "info"))
    if isinstance(client, holdfast.sync.Holdfast):
        _run_blocking(client, supervised)
    else:
        asyncio.run(_run(client, supervised))


async def _run(client: holdfast.Holdfast, supervised: bool) -> None:
    loop = asyncio.get_running_loop()
    async with client:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, client.stop_work)
        if supervised:
            _when_orphaned(client.stop_work)
        _tell(f"working (pid {os.getpid()})")
        await client.work()
    _tell(f"stopped (pid {os.getpid()})")


def _run_blocking(client: holdfast.sync.Holdfast, supervised: bool) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: client.stop_work())
    if supervised:
        _when_orphaned(client.stop_work)
    with client:
        _tell(f"working (pid {os.getpid()})")
        client.work()
    _tell(f"stopped (pid {os.getpid()})")


def _tell(line: str) -> None:
    """In one piece: several processes write to the same place, and `print` without a buffer writes twice."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _when_orphaned(stop: Callable[[], None]) -> None:
    """Standard input ends when whoever looks after us is gone: then nobody would ever stop us."""

    def watch() -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(0, 1024):
                pass
        stop()

    threading.Thread(target=watch, name="holdfast-orphan-watch", daemon=True).start()


async def supervise(client: Any, target: str, processes: int) -> int:
    """Run so many processes until SIGTERM or SIGINT. Answers the exit code."""
    return await Supervisor(target, processes, client.settings.drain).run()


class Supervisor:
    """Keeps so many processes running: one that ends is started again, unless it was asked to."""

    def __init__(self, target: str, processes: int, drain: float, environment: Mapping[str, str] | None = None) -> None:
        self._target = target
        self._count = processes
        self._drain = drain
        self._environment = {**os.environ, **(environment or {})}
        self._stopping = asyncio.Event()
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._code = 0

    async def run(self) -> int:
        """Answers the exit code: 0 after a stop, 2 if the application cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        return await self.keep()

    async def keep(self) -> int:
        """The same, without listening to signals: until `stop`."""
        await asyncio.gather(*(self._keep(number) for number in range(self._count)))
        return self._code

    def stop(self) -> None:
        """Let them drain; asked twice, end them at once."""
        if self._stopping.is_set():
            self._signal(signal.SIGKILL)  # asked twice
            return
        self._stopping.set()
        self._signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._drain + MARGIN, self._signal, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for child in self._children.values():
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(number)

    async def _keep(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        pause = PAUSE_FIRST
        while not self._stopping.is_set():
            started = loop.time()
            child = self._children[number] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "holdfast.cli", "work", self._target, "--supervised",
                stdin=asyncio.subprocess.PIPE, start_new_session=True, env=self._environment,
            )  # fmt: skip
            if self._stopping.is_set():
                child.terminate()
            code = await child.wait()
            if self._stopping.is_set():
                return
            if code == CONFIGURATION:
                self._code = code
                self.stop()
                return
            pause = PAUSE_FIRST if loop.time() - started > QUICK else min(PAUSE_MOST, pause * 2)
            _tell(f"process {number + 1} (pid {child.pid}) ended with {code}; starting it again in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
