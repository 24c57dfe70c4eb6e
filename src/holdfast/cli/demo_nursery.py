"""Where the processes of a demonstration are born: a process that has imported all they need, and forks.

Starting Python anew for each would take longer, on a busy machine, than the leases that the demonstration is about.
This one has no threads and no connections, so that a fork of it is as good as new. When whoever started it is gone it
kills all its children, also those that are frozen and could not notice it themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from os import _exit as leave
from pathlib import Path
from typing import NoReturn

from holdfast.cli import demo_process

BIRTH = b"b"
"""With three descriptors: standard input, output and error of the child."""


class Child:
    """A process: where to write to it and read from it, and how it ended."""

    def __init__(self, pid: int, tell: int, lines: asyncio.StreamReader) -> None:
        self.pid = pid
        self.lines = lines
        self.code: int | None = None
        """None while it lives; minus a signal's number if that has ended it."""
        self._tell = tell
        self._over = asyncio.Event()

    def tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._tell, f"{line}\n".encode())

    def signal(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def over(self, code: int) -> None:
        if self.code is None:
            self.code = code
            os.close(self._tell)
            self._over.set()

    async def ended(self) -> int:
        await self._over.wait()
        assert self.code is not None
        return self.code


class Nursery:
    """The side of whoever starts it. `async with`: at the end neither it nor any of its children is left."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._ours, self._theirs = socket.socketpair()
        self._process: asyncio.subprocess.Process | None = None
        self._children: dict[int, Child] = {}
        self._unborn: deque[tuple[int, asyncio.StreamReader, asyncio.Future[Child]]] = deque()
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Nursery:
        with self.log.open("ab") as log:
            # In a group of its own, with its children: Ctrl-C is for us.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "holdfast.cli.demo_nursery",
                stdin=self._theirs.fileno(), stdout=subprocess.DEVNULL, stderr=log, process_group=0,
            )  # fmt: skip
        self._theirs.close()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)  # which it takes for our end
        assert self._process is not None
        assert self._reading is not None
        await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._ours.close()

    async def start(self, log: Path) -> Child:
        """A new process. Raises ChildProcessError if the nursery is gone."""
        theirs_in, tell = os.pipe()
        hear, theirs_out = os.pipe()
        with log.open("ab") as errors, _closing(theirs_in, theirs_out):
            try:
                socket.send_fds(self._ours, [BIRTH], [theirs_in, theirs_out, errors.fileno()])
            except OSError as error:
                raise ChildProcessError(str(error)) from None
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
        born: asyncio.Future[Child] = loop.create_future()
        self._unborn.append((tell, lines, born))
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(hear, "rb", 0))
        return await born

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._ours.dup())
        try:
            async for line in reader:
                word, pid, code = line.split()
                if word == b"born":
                    self._born(int(pid))
                else:
                    self._children.pop(int(pid)).over(int(code))
        finally:
            writer.close()
            for child in self._children.values():
                child.signal(signal.SIGKILL)
                child.over(-signal.SIGKILL)
            for tell, _, born in self._unborn:
                os.close(tell)
                if not born.done():
                    born.set_exception(ChildProcessError("the nursery has ended"))

    def _born(self, pid: int) -> None:
        """In the order in which they were asked for. One that nobody waits for any more is ended later."""
        tell, lines, born = self._unborn.popleft()
        child = self._children[pid] = Child(pid, tell, lines)
        if not born.done():
            born.set_result(child)


@contextlib.contextmanager
def _closing(*descriptors: int) -> Iterator[None]:
    try:
        yield
    finally:
        for one in descriptors:
            os.close(one)


# -- the nursery itself -----------------------------------------------------------------------------------------------


def serve() -> None:
    """Fork whenever it is asked for, say who was born and who has died, until standard input ends."""
    link = socket.socket(fileno=os.dup(0))
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    alive: set[int] = set()
    try:
        while True:
            ready = select.select([link.fileno(), awake], [], [])[0]
            if awake in ready:
                os.read(awake, 1024)
                _say_who_died(link, alive)
            if link.fileno() in ready:
                asked, descriptors, _, _ = socket.recv_fds(link, 1, 3)
                if not asked:
                    return
                pid = os.fork()
                if pid == 0:
                    _live(descriptors, [link.fileno(), awake, wake])
                alive.add(pid)
                for one in descriptors:
                    os.close(one)
                link.sendall(b"born %d 0\n" % pid)
    finally:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while alive:
            alive.discard(os.wait()[0])


def _say_who_died(link: socket.socket, alive: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            alive.discard(found[0])
            link.sendall(b"died %d %d\n" % (found[0], os.waitstatus_to_exitcode(found[1])))


def _live(descriptors: list[int], not_ours: list[int]) -> NoReturn:
    """In the child. It never returns into the loop of the nursery."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for at, one in enumerate(descriptors):
            os.dup2(one, at)
        for one in (*descriptors, *not_ours):
            os.close(one)
        asyncio.run(demo_process.main())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)  # also if a thread waits for the database still


if __name__ == "__main__":
    import holdfast.memory  # noqa: F401 - its children need it

    serve()
