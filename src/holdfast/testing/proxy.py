"""A proxy between a client and its server that misbehaves on demand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from .links import Counters, Faults, Link, Rule, Streams
from .ports import free_port
from .processes import LocalServerError

T = TypeVar("T")

_TRIES = 50


class FaultProxy:
    """Listens on a free port of 127.0.0.1 and passes everything on to one server, until told to do otherwise.

        with FaultProxy(server.host, server.port) as proxy:
            client = connect(proxy.url)
            proxy.drop_replies(1, match=b"EVALSHA")     # executed, but the client never hears of it
            ...
            proxy.heal()

    Faults add up, and last until `heal`. They may be set from any thread; when the call returns, the fault is
    in force. `match` restricts a fault to requests that contain these bytes, so that handshakes pass. Faults
    are counted in whole requests and replies, never in packets.

    It needs a thread of its own, which `close` ends together with every connection.
    """

    def __init__(
        self,
        target_host: str = "127.0.0.1",
        target_port: int | None = None,
        *,
        target_path: str | Path | None = None,
    ) -> None:
        if (target_port is None) == (target_path is None):
            raise ValueError("Pass either target_port or target_path: the proxy forwards to one server.")
        self.host = "127.0.0.1"
        self._target = (target_host, target_port, target_path)
        self._port: int | None = None
        self._counters = Counters()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # What follows is touched on the proxy's thread alone.
        self._faults = Faults()
        self._links: dict[asyncio.Task[None], Link] = {}
        self._listener: asyncio.Server | None = None
        self._closing: asyncio.Event | None = None

    # -- what it is

    @property
    def port(self) -> int:
        """The port it listens on, the same from start to close."""
        if self._port is None:
            raise LocalServerError("Start the proxy first: it has no port yet.")
        return self._port

    @property
    def url(self) -> str:
        """The URL to give to a client instead of the server's."""
        return f"redis://{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        return self._counters.connections

    @property
    def open_connections(self) -> int:
        """How many connections there are now, those in a black hole included."""
        return len(self._links)

    @property
    def requests_forwarded(self) -> int:
        """How many requests the server was sent so far, handshakes included."""
        return self._counters.requests

    @property
    def replies_dropped(self) -> int:
        """How many replies of the server were thrown away so far."""
        return self._counters.dropped

    # -- its life

    def start(self) -> Self:
        """Begin to listen. No fault is set."""
        if self._thread is not None:
            raise LocalServerError("Close the proxy before starting it again.")
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(started)), name="holdfast-fault-proxy", daemon=True
        )
        self._thread.start()
        try:
            self._loop = started.result()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise
        return self

    def close(self) -> None:
        """Cut everything and end the thread. May be repeated."""
        if self._thread is None:
            return
        self._run(self._close())
        self._thread.join()
        self._thread = self._loop = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- faults

    def delay(self, seconds: float, *, direction: Literal["both", "requests", "replies"] = "both") -> None:
        """Deliver everything this much later. `both` delays a round trip by twice as much.

        A request on its way is still delivered when its client has given up and closed the connection
        meanwhile.
        """
        self._run(self._delay(seconds, direction))

    def throttle(self, bytes_per_second: float) -> None:
        """Pass no more than this on each connection in each direction."""
        self._run(self._set(rate=bytes_per_second))

    def drop_replies(self, n: int | None = None, *, match: bytes | None = None, cut: bool = True) -> None:
        """Let the next `n` requests (None: all) reach the server, but throw their replies away.

        The connection is cut when the reply has come, and thus when the request was executed. With
        `cut=False` it stays open and silent: the client sees a timeout, and no later reply on that connection
        either. Subscriptions and other pushed messages pass.
        """
        self._run(self._set(drop=Rule(match, n, cut)))

    def cut(self) -> None:
        """Cut all connections now. New ones are welcome."""
        self._run(self._cut(list(self._links)))

    def cut_after_requests(self, n: int = 1, *, match: bytes | None = None) -> None:
        """Cut the connection that carries the `n`-th request from now, without forwarding that request. Once."""
        self._run(self._set(cut=Rule(match, n)))

    def refuse(self) -> None:
        """Refuse new connections, as if nobody listened. Existing ones go on; see `cut`."""
        self._run(self._stop_listening())

    def black_hole(self, *, match: bytes | None = None) -> None:
        """Accept and read everything, forward nothing and answer nothing, not even the end of a connection.

        With `match`, a connection is swallowed from its first matching request on.
        """
        self._run(self._set(hole=Rule(match)))

    def heal(self) -> None:
        """Remove all faults. Connections that lost bytes are cut, because they could only continue garbled."""
        self._run(self._heal())

    # -- on the proxy's thread

    def _run(self, change: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            change.close()
            raise LocalServerError("Start the proxy first: call start() or use it in a with block.")
        return asyncio.run_coroutine_threadsafe(change, self._loop).result()

    async def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._faults = Faults()
        self._closing = asyncio.Event()
        try:
            await self._listen()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(asyncio.get_running_loop())
        await self._closing.wait()

    async def _listen(self) -> None:
        # It was free when it was chosen or given up; somebody may have been quicker.
        for attempt in range(1, _TRIES + 1):
            port = self._port or free_port()
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((self.host, port))
                self._listener = await asyncio.start_server(self._accept, sock=listener, backlog=512)
            except OSError as error:
                listener.close()
                if attempt == _TRIES:
                    raise LocalServerError(f"Free the port {port} on {self.host}: {error}") from error
                await asyncio.sleep(0.02)
            else:
                self._port = port
                return

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._counters.connections += 1
        link = Link((reader, writer), self._faults, self._counters)
        task = asyncio.ensure_future(self._serve(link))
        self._links[task] = link

        # Here and not in the task: a task that is cancelled before its first step never runs at all.
        def ended(task: asyncio.Task[None]) -> None:
            del self._links[task]
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _serve(self, link: Link) -> None:
        hole = self._faults.hole
        # The proxy has accepted on behalf of a server that may not be there. All it can do then is hang up.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await link.run(None if hole is not None and hole.match is None else await self._connect())

    async def _connect(self) -> Streams:
        host, port, path = self._target
        if path is not None:
            return await asyncio.open_unix_connection(path)
        return await asyncio.open_connection(host, port)

    async def _set(self, **faults: object) -> None:
        for name, value in faults.items():
            setattr(self._faults, name, value)
        self._faults.change()

    async def _delay(self, seconds: float, direction: Literal["both", "requests", "replies"]) -> None:
        if direction == "both":
            self._faults.delays.update({"requests": seconds, "replies": seconds})
        else:
            self._faults.delays[direction] = seconds
        self._faults.change()

    async def _cut(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _heal(self) -> None:
        self._faults.delays.clear()
        await self._set(rate=None, drop=None, cut=None, hole=None)
        await self._cut([task for task, link in self._links.items() if link.broken])
        if self._listener is None:
            await self._listen()

    async def _close(self) -> None:
        await self._stop_listening()
        await self._cut(list(self._links))
        assert self._closing is not None
        self._closing.set()
