"""Counts what clients send and get, by relaying their connections and parsing what passes.

The server's own counters cannot answer this: INFO commandstats, CLIENT LIST tot-cmds and the command log of Valkey
all count the commands called inside scripts too (tried: one EVAL with ten calls adds eleven to each of them). So the
count is taken on the wire, in turns of their own, because the relay adds latency that a timed turn must not have.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Self

import hiredis


class WireTap:
    """A relay on a free loopback port in front of the server's; `commands` is what has passed so far.

    `answered` are the bytes that the server has sent through it."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self.commands = 0
        self.answered = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._selector = selectors.DefaultSelector()
        self._stopped = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._relay, name="wiretap", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join(5)
        for sock in self._sockets:
            sock.close()
        self._listener.close()
        self._selector.close()

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _relay(self) -> None:
        while not self._stopped.is_set():
            for key, _ in self._selector.select(0.1):
                if key.data is None:
                    self._accept()
                else:
                    self._pass_on(key.fileobj, *key.data)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.add(sock)
        self._selector.register(client, selectors.EVENT_READ, (server, hiredis.Reader()))
        self._selector.register(server, selectors.EVENT_READ, (client, None))

    def _pass_on(self, source: socket.socket, target: socket.socket, requests: hiredis.Reader | None) -> None:
        try:
            data = source.recv(65536)
            if data:
                target.sendall(data)
        except OSError:
            data = b""
        if not data:
            self._hang_up(source, target)
        elif requests is None:
            self.answered += len(data)
        else:
            requests.feed(data)  # a request has the same form as a reply: an array of strings
            while requests.gets() is not False:
                self.commands += 1

    def _hang_up(self, *pair: socket.socket) -> None:
        for sock in pair:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
            self._sockets.discard(sock)
            sock.close()
