"""A load whose client costs next to nothing: many connections, many requests in flight, a socket and hiredis.

The same load as `redis-benchmark -P 16 -c 50`, except that the requests may differ. Replies are parsed by hiredis and
only their first word is looked at.
"""

from __future__ import annotations

import collections
import selectors
import socket
import time
from collections.abc import Iterator, Sequence

import hiredis

CONNECTIONS = 50
PIPELINE = 16  # requests in flight per connection


def drive(
    addr: str, seconds: float, first: Sequence[bytes], writes: Sequence[Iterator[bytes]]
) -> tuple[collections.Counter[str], float]:
    """Send the requests of `first`, then for so long blocks of PIPELINE requests, from one iterator per connection.

    Answers how often each first word came, and the seconds it took until the last block was answered."""
    host, _, port = addr.rpartition(":")
    words = collections.Counter[str]()
    selector = selectors.DefaultSelector()
    connections = [socket.create_connection((host, int(port))) for _ in writes]
    try:
        _prepare(connections[0], first)
        started = time.monotonic()
        deadline = started + seconds
        for connection, blocks in zip(connections, writes, strict=True):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, [hiredis.Reader(), PIPELINE, blocks])
            connection.sendall(next(blocks))
        flying = len(connections)
        while flying:
            for key, _ in selector.select(10):
                if not _take(key.fileobj, key.data, words):  # type: ignore[arg-type]
                    continue
                if time.monotonic() < deadline:
                    key.data[1] = PIPELINE
                    key.fileobj.sendall(next(key.data[2]))  # type: ignore[union-attr]
                else:
                    flying -= 1
        return words, time.monotonic() - started
    finally:
        selector.close()
        for connection in connections:
            connection.close()


def _prepare(connection: socket.socket, requests: Sequence[bytes]) -> None:
    reader = hiredis.Reader()
    for request in requests:
        connection.sendall(request)
        while (reply := reader.gets()) is False:
            reader.feed(connection.recv(65536))
        if isinstance(reply, hiredis.ReplyError):
            raise reply


def _take(connection: socket.socket, state: list[object], words: collections.Counter[str]) -> bool:
    """Read what is there; True when the block is answered in full."""
    reader, missing, _ = state
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the server closed the connection")
    reader.feed(data)  # type: ignore[attr-defined]
    while (reply := reader.gets()) is not False:  # type: ignore[attr-defined]
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        words[(reply[0] if isinstance(reply, list) else reply).decode()] += 1
        missing -= 1  # type: ignore[operator]
    state[1] = missing
    return missing == 0
