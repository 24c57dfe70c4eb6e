"""Ends an embedded server with its last user.

Run as a program, with the server's directory as working directory:

    watcher.py kept|private LINK start BINARY OPTION...     start a server and watch over it
    watcher.py kept|private LINK adopt                      watch over a server whose watcher was killed

It knows who is alive from three flocks, and from nothing else. The kernel drops a flock with the last
descriptor on it, so after kill -9 of anybody there is nothing to clean up and nothing stale to misread:

    users.lock      shared by every process that uses the server     granted to us: the last user is gone
    watcher.lock    held by the watcher
    server.lock     held by the server, which inherits it            granted to us: the server is gone

The server's own lock is what makes a second server on the same append-only file impossible, also while the
first one is frozen, still loading, or without a watcher.

Standard library only, and nothing of Holdfast: it runs with -I -S and outlives the process that started it.
The names, the locks and the few words with the server that it shares with `embedded.py` are defined here.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

SOCKET = "server.sock"
PIDFILE = "server.pid"
LOG = "server.log"
START_LOCK = "start.lock"
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=4000:glibc.malloc.mxfast=160"}
"""The server in the wheel uses the C library's malloc, which with a hundred thousand keys makes each script cost half
as much again unless it keeps more of what was just freed at hand. What the user has set goes first."""
USERS_LOCK = "users.lock"
WATCHER_LOCK = "watcher.lock"
SERVER_LOCK = "server.lock"

WATCHING = 0
BUSY = 75
"""Exit status of the first stage: a watcher, or a server to start next to, is there already. Look again."""

GRACE = 10.0
"""Seconds a server gets for its last fsync before it is killed."""

REPLY_TIMEOUT = 1.0

LOG_LIMIT = 1 << 20
"""Bytes of log that a new start still appends to."""


def open_lock(path: str | Path, *, create: bool = True) -> int:
    """A descriptor of its own on a lock file: flocks belong to the open file, not to the process."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    return os.open(path, flags, 0o600)


def try_lock(path: str | Path, kind: int = fcntl.LOCK_EX, *, create: bool = True) -> int | None:
    """The descriptor that now holds the lock, or None where somebody else holds it."""
    fd = open_lock(path, create=create)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def unlock(fd: int) -> None:
    """Release for good. A plain close would leave it with a child forked by another thread meanwhile."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def is_free(path: str | Path) -> bool:
    """Whether nobody holds the lock. Never creates the file: the directory may be on its way out."""
    try:
        fd = try_lock(path, create=False)
    except FileNotFoundError:
        return True
    if fd is not None:
        unlock(fd)
    return fd is not None


def connect(path: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(REPLY_TIMEOUT)
    try:
        link.connect(path)
    except BaseException:
        link.close()
        raise
    return link


def ask(path: str, command: str) -> list[str]:
    """The lines of the reply to one command. Empty where the server hung up."""
    with connect(path) as link:
        # QUIT makes the server close after the reply: its end needs no parser.
        link.sendall(f"{command}\r\nQUIT\r\n".encode())
        reply = b"".join(iter(lambda: link.recv(65536), b""))
    return reply.decode(errors="replace").split("\r\n") if reply else []


def server_pid(path: str) -> int:
    """The pid of whoever listens; 0 where it runs in another container and has no pid in ours.

    Linux tells it translated, and also of a server that is frozen. Elsewhere the server has to be asked.
    """
    if peer_credentials := getattr(socket, "SO_PEERCRED", None):
        with connect(path) as link:
            peer = link.getsockopt(socket.SOL_SOCKET, peer_credentials, struct.calcsize("3i"))
        return int(struct.unpack("3i", peer)[0])
    pids = [line for line in ask(path, "INFO server") if line.startswith("process_id:")]
    return int(pids[0].partition(":")[2]) if pids else 0


def point(link: Path, directory: Path) -> None:
    """Make `link` lead to `directory`. Raises OSError where something else is in the way."""
    with suppress(FileNotFoundError):
        found = link.lstat()
        # Anybody can put something else here first: the name is no secret and the place is shared.
        if not stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
            raise FileExistsError("it is not a link made by this user")
        if os.readlink(link) == str(directory):
            return
        link.unlink()
    link.symlink_to(directory)


class Watch:
    """Waits for the last user or the server to go, whichever is first, without waking up in between."""

    def __init__(self, pid: int, private: bool, link: str, watching: int) -> None:
        self.pid = pid
        self.private = private
        self.link = link
        self.watching = watching
        self.directory = Path.cwd()
        self.users = open_lock(USERS_LOCK)
        self.server = open_lock(SERVER_LOCK)
        self.gone: SimpleQueue[int] = SimpleQueue()

    def run(self) -> None:
        for fd in (self.users, self.server):
            threading.Thread(target=self._wait_for, args=(fd,), daemon=True).start()
        server_died = self.gone.get() == self.server
        if not server_died:
            # The lock on users.lock stays with us to the end: a newcomer waits there, and then starts anew.
            self._stop_server()
        with suppress(ChildProcessError):  # an adopted server is not our child
            os.waitpid(self.pid, 0)
        if server_died:
            self._let_restart()
        else:
            self._tidy()

    def _wait_for(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        self.gone.put(fd)

    def _let_restart(self) -> None:
        """Make room for the next user to start it again. Somebody must still remove a private directory."""
        unlock(self.server)
        unlock(self.watching)
        if not self.private:
            return
        self.gone.get()
        with suppress(FileNotFoundError):
            if try_lock(WATCHER_LOCK, create=False) is not None:
                self._tidy()

    def _stop_server(self) -> None:
        # A private server has nothing to write down, so it need not be asked (which takes it up to 100 ms).
        for sent in (signal.SIGKILL,) if self.private else (signal.SIGTERM, signal.SIGKILL):
            # server.lock is not ours yet, so the pid still names the server and no later process.
            with suppress(ProcessLookupError):
                os.kill(self.pid, sent)
            with suppress(Empty):
                self.gone.get(timeout=GRACE)
                return
        self.gone.get()

    def _tidy(self) -> None:
        if self.link:
            with suppress(OSError):
                if os.readlink(self.link) == str(self.directory):
                    os.unlink(self.link)
        if self.private:
            import shutil

            os.chdir("/")
            shutil.rmtree(self.directory, ignore_errors=True)


def launch(command: list[str], server_lock: int) -> int:
    """Start the server. It inherits the lock and ours is closed, so that the two end together."""
    if os.path.getsize(LOG) > LOG_LIMIT:
        os.replace(LOG, f"{LOG}.old")
    for stale in (SOCKET, PIDFILE):
        with suppress(FileNotFoundError):
            os.unlink(stale)
    os.set_inheritable(server_lock, True)
    pid = os.posix_spawn(
        command[0],
        command,
        {**ALLOCATOR, **os.environ},
        file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)],
        # The process that started us may block or ignore signals, and both survive exec.
        setsigmask=[],
        setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
    )
    os.close(server_lock)
    return pid


def claim(path: str) -> int | None:
    """`try_lock`, undeterred by somebody who only looks whether the lock is free and is gone at once."""
    for _ in range(20):
        if (fd := try_lock(path)) is not None:
            return fd
        time.sleep(0.005)
    return None


def main(arguments: list[str]) -> int:
    kind, link, mode, *command = arguments
    os.umask(0o077)
    if (watching := claim(WATCHER_LOCK)) is None:
        return BUSY
    server_lock, pid = None, 0
    if mode == "start":
        server_lock = claim(SERVER_LOCK)
    else:
        with suppress(OSError):
            pid = server_pid(SOCKET)
    if server_lock is None and not pid:
        return BUSY
    # The locks are ours. Only now the first stage ends, and the process that waits for it can trust what they
    # say. The second stage is nobody's child: the user's process gets no zombie and no SIGCHLD from it.
    if os.fork():
        return WATCHING
    os.ftruncate(watching, 0)
    os.write(watching, f"{os.getpid()}\n".encode())
    if server_lock is not None:
        pid = launch(command, server_lock)
    # A service manager that signals every process it knows must not take the watcher from draining users.
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    Watch(pid, kind == "private", link, watching).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
