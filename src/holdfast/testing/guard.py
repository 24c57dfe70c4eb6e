"""The parent process of a test server. It ends the server when the process that asked for it is gone.

Run as a script, never imported: `python -I -S guard.py`. It reads one line of JSON from standard input,
starts the server, prints its process id, and then stays until one of these happens:

    the server ends                        it exits with the server's status
    standard input reaches its end         the holder of the other end is dead: kill the server
    its own parent has changed             the same, when a forked sibling still holds the other end open

PR_SET_PDEATHSIG would be shorter, but it fires when the *thread* that started the server ends, and only on
Linux. A pipe has neither flaw and no race: it exists before the server does. Only built-in and small modules
are imported, because every test server pays for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal

# Only the rare forked sibling waits for this; the pipe is noticed at once.
_PARENT_CHECK = 0.5


def main() -> None:
    parent = os.getppid()
    order = json.loads(_read_line())
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, _close_input)
    try:
        server = _start(order)
    except OSError as error:
        _say(f"error {error}")
        os._exit(127)
    _say(f"pid {server}")
    while True:
        status = _exited(server)
        if status is not None:
            os._exit(status)
        if _abandoned(parent, wake_reader):
            _end(server, order["remove"])


def _read_line() -> bytes:
    # Byte by byte from the descriptor: a buffered reader could swallow the end of file that select must see.
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(0)
        line += byte
    return bytes(line)


def _close_input(_signal: int, _frame: object) -> None:
    # A second SIGTERM finds it closed already.
    with contextlib.suppress(OSError):
        os.close(0)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(1, text.encode() + b"\n")


def _start(order: dict[str, object]) -> int:
    log = str(order["log"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        str(order["executable"]),
        list(order["arguments"]),  # type: ignore[call-overload]
        dict(order["environment"]),  # type: ignore[call-overload]
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        # Its own group: the children it forks to write snapshots are killed with it.
        setpgroup=0,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM],
    )


def _exited(server: int) -> int | None:
    pid, status = os.waitpid(server, os.WNOHANG)
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _abandoned(parent: int, wake_reader: int) -> bool:
    try:
        ready, _, _ = select.select([0, wake_reader], [], [], _PARENT_CHECK)
        if wake_reader in ready:
            os.read(wake_reader, 1024)
        if 0 in ready and not os.read(0, 1024):
            return True
    except OSError:  # SIGTERM closed standard input
        return True
    return os.getppid() != parent


def _end(server: int, remove: object) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server, signal.SIGKILL)
    os.waitpid(server, 0)
    if remove:
        import shutil

        shutil.rmtree(str(remove), ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
