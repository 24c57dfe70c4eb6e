"""Runs a node: the client, the workers of an application, and the HTTP server, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast import ConfigurationError, Holdfast
from holdfast.events import Observer
from holdfast.node.access import Access
from holdfast.node.app import NodeApp, running
from holdfast.node.state import Node
from holdfast.settings import NodeSettings, collections_of

PLAYGROUND = "holdfast.node.playground:make"
SLOW_HEAD = 15.0
"""Seconds that the head of a request may take."""
SLOW_READER = 60.0
"""Seconds that an answer may wait for somebody to read it."""
LEAVE = 3
"""Seconds that requests have to end when the node stops."""
Supervise = Callable[[str, int, dict[str, str], asyncio.Event], Awaitable[int]]
"""Runs the workers of an application in processes of their own, until the event; answers their exit code."""

log = logging.getLogger("holdfast.node")


class Served:
    """A node that runs: where it is, and what it works on."""

    def __init__(self, config: NodeSettings, address: str, url: str) -> None:
        self.config = config
        self.address = address
        self.url = url
        """Of the server, as others on this machine would pass it; without a password."""


def url_of(config: NodeSettings) -> str:
    """Which server: the one that was named, or the embedded one in the data directory."""
    if config.url:
        if config.playground:
            raise ConfigurationError(
                "leave --playground out, or HOLDFAST_URL: its workers would absorb what waits on that server. "
                "With --data it has an embedded one"
            )
        if config.server_port:
            raise ConfigurationError("pass server_port only for the embedded server, not with a URL")
        return config.url
    path = quote(str(Path(config.data).expanduser().resolve()))
    return f"embedded://{path}" + (f"?port={config.server_port}" if config.server_port else "")


def store_of(config: NodeSettings) -> str:
    """Which database."""
    if config.store:
        return config.store
    path = Path(config.data).expanduser().resolve()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return f"sqlite:///{path / 'holdfast.db'}"


async def serve(
    config: NodeSettings,
    *,
    supervise: Supervise,
    told: Callable[[Served], None],
    settings: dict[str, Any] | None = None,
) -> int:  # fmt: skip
    """Until SIGTERM or SIGINT. Requests then have a few seconds, handlers the setting `drain`; a second signal ends the
    workers at once. Answers an exit code.

    `told` is called when everything listens."""
    access = Access(config)
    access.check_bind(config.host)
    collections = collections_of()
    _logs(config)
    from prometheus_client import CollectorRegistry

    from holdfast.observe import LogObserver
    from holdfast.observe.prometheus import PrometheusObserver

    registry = CollectorRegistry()
    url = url_of(config)
    observers: list[Observer] = [PrometheusObserver(registry), LogObserver()]
    store = await asyncio.to_thread(_open_store, config)
    given = {"name": "node", **(settings or {})}
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    try:
        async with Holdfast(url, observers=observers, **given) as hf:
            app = NodeApp(Node(hf, config, access, store, collections))
            app.node.registry = registry
            listening = _listen(config)
            with listening:
                return await _run(app, listening, config, url, supervise, told, stop, hurry)
    finally:
        if store is not None:
            await asyncio.to_thread(store.close)


async def _run(
    app: NodeApp, listening: socket.socket, config: NodeSettings, url: str, supervise: Supervise,
    told: Callable[[Served], None], stop: asyncio.Event, hurry: asyncio.Event,
) -> int:  # fmt: skip
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    server = _Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", server_header=False, date_header=True,
            timeout_graceful_shutdown=LEAVE, timeout_keep_alive=30, h11_max_incomplete_event_size=65_536,
            http=_Connection, ws="none", proxy_headers=False,
        )
    )  # fmt: skip
    code = 0
    async with running(app):
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        workers = asyncio.create_task(_work(config, url, supervise, stop))
        stopping = asyncio.create_task(stop.wait())
        try:
            told(Served(config, address, app.node.hf.shown))
            done, _ = await asyncio.wait({serving, workers, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if workers in done:
                code = workers.result()
        finally:
            stop.set()
            app.node.close()
            server.should_exit = True
            (failed,) = await asyncio.gather(serving, return_exceptions=True)
            if isinstance(failed, Exception):
                log.error("serving ended", exc_info=failed)
                code = code or 1
            await app.node.settled(LEAVE)
            code = code or await _drained(workers, hurry)
            stopping.cancel()
    return code


async def _drained(workers: asyncio.Task[int], hurry: asyncio.Event) -> int:
    """What the workers ended with. Asked twice, they end at once."""
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait({workers, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    if not workers.done():
        workers.cancel()
        await asyncio.wait({workers})
    return 0 if workers.cancelled() else workers.result()


async def _work(config: NodeSettings, url: str, supervise: Supervise, stop: asyncio.Event) -> int:
    """The application's workers, if there are any. Ends with the node."""
    target = PLAYGROUND if config.playground else config.app
    if not target:
        await stop.wait()
        return 0
    environment = {
        "HOLDFAST_URL": url, "HOLDFAST_NODE_STORE": store_of(config), "HOLDFAST_NODE_LOG_FORMAT": config.log_format,
        "HOLDFAST_NODE_LOG_LEVEL": config.log_level,
    }  # fmt: skip
    return await supervise(target, config.processes, environment, stop)


class _Connection(H11Protocol):
    """One who does not send the head of a request in time, or does not read what is answered, is hung up on: else a few
    thousand of them, whom nobody has asked for a token yet, are all the connections that there may be."""

    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(SLOW_HEAD, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        asked = self.cycle is not None and not self.cycle.response_complete
        if asked and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not asked and self._late is None:  # the beginning of the next one
            self._late = self.loop.call_later(SLOW_HEAD, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(SLOW_READER, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """Signals are the node's own, which stops more than this."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def _listen(config: NodeSettings) -> socket.socket:
    """Bound here, so that the port is known, and a port in use is a plain error."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # Named, or asyncio does not know that it is TCP and leaves Nagle's algorithm on: 40 ms for each answer.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((config.host, config.port))
        made.listen(1024)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise ConfigurationError(
            f"pass another --host or --port: {config.host}:{config.port} cannot be used ({error.strerror})"
        ) from None
    return made


def _open_store(config: NodeSettings) -> Any:
    """The monitors' database, where SQLAlchemy is installed; without it, what needs one says so."""
    try:
        from holdfast.memory import MonitorStore
    except ImportError:
        if config.store:
            raise ConfigurationError("pip install '.[memory]' in Holdfast's clone to use a store") from None
        return None
    return MonitorStore(store_of(config)).open()


def _logs(config: NodeSettings) -> None:
    from holdfast.observe import write_logs

    write_logs(config.log_format, config.log_level)
    server = logging.getLogger("uvicorn")
    server.handlers[:] = logging.getLogger("holdfast").handlers
    server.propagate = False
    server.setLevel(logging.WARNING)


__all__ = ["PLAYGROUND", "Served", "serve", "store_of", "url_of"]
