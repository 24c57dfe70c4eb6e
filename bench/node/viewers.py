"""Browsers that look at a live page of the node, as far as the node can tell, and one reader who loads pages.

Those who look read what is sent, and throw it away."""

from __future__ import annotations

import contextlib
import http.client
import selectors
import socket
import threading
import time
from collections.abc import Iterator

from ..fleet import WorkerFailed

LIVE = "/?live=1"
PATCH = b"event: patch"
WAIT = 20.0


class Viewers:
    """`patches` is how many pieces of news each was sent so far."""

    def __init__(self, port: int, count: int) -> None:
        self._stopped = threading.Event()
        self._selector = selectors.DefaultSelector()
        self.patches: list[int] = [0] * count
        self._tails: list[bytes] = [b""] * count
        self._sockets = [socket.create_connection(("127.0.0.1", port), WAIT) for _ in range(count)]
        request = f"GET {LIVE} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n\r\n".encode()
        for number, sock in enumerate(self._sockets):
            sock.sendall(request)
            self._selector.register(sock, selectors.EVENT_READ, number)
        self._thread = threading.Thread(target=self._read, name="viewers", daemon=True)
        self._thread.start()

    def wait_for_first(self) -> None:
        deadline = time.monotonic() + WAIT
        while not all(self.patches):
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise WorkerFailed("a viewer was not shown anything")
            time.sleep(0.02)

    def _read(self) -> None:
        while not self._stopped.is_set():
            for key, _ in self._selector.select(0.1):
                data = self._tails[key.data] + key.fileobj.recv(262_144)  # type: ignore[union-attr]
                if data == self._tails[key.data]:
                    return  # the node ended the stream: whoever waits sees that nobody reads
                self.patches[key.data] += data.count(PATCH)
                self._tails[key.data] = data[-len(PATCH) + 1 :]

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(5)
        self._selector.close()
        for sock in self._sockets:
            sock.close()


@contextlib.contextmanager
def viewers(port: int, count: int) -> Iterator[Viewers]:
    """They all have been shown the page; with 0 there is nobody."""
    looking = Viewers(port, count)
    try:
        looking.wait_for_first()
        yield looking
    finally:
        looking.close()


class Reader:
    """Loads pages over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)

    def load(self, path: str, expected: str) -> tuple[float, int]:
        """Milliseconds and bytes. Raises WorkerFailed unless the page has this text."""
        started = time.monotonic()
        self._connection.request("GET", path, headers={"Accept": "text/html"})
        answer = self._connection.getresponse()
        body = answer.read()
        took = time.monotonic() - started
        if answer.status != 200 or expected.encode() not in body:
            raise WorkerFailed(f"{path} answered {answer.status} without {expected!r}")
        return took * 1e3, len(body)

    def close(self) -> None:
        self._connection.close()
