"""What the server can do with Holdfast's own scripts when the client costs next to nothing.

python -m bench.locks.raw_load ADDR SECONDS

The same load as `redis-benchmark -P 16 -c 50`, with one difference: redis-benchmark repeats one command; here every
release follows its own acquire, so that each takes the path that it takes in real use. Requests are packed before the
clock starts; replies are parsed by hiredis and only their first word is looked at.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import re
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Sequence

import hiredis

CONNECTIONS = 50
PIPELINE = 16  # commands in flight per connection: 8 acquires, then their 8 releases
PAIRS = 20_000  # distinct names and tokens; used again from the first when the time is not up
TTL_MS = 30_000


# --- the one place that knows the arguments of the scripts ------------------------------------------------------------
def raw_requests(n: int) -> list[tuple[bytes, bytes]]:
    """`n` pairs of packed commands: acquire and release of a lock with a name and a token of its own.

    Keys, tokens, owner and channels come from the library itself, so that the load is what a client sends.
    """
    from holdfast.engine.core import Core
    from holdfast.locks.spec import place

    core = Core("redis://127.0.0.1:1", observers=(), overrides={})  # names things; it is never connected
    acquire, release = core.scripts.get("locks/acquire"), core.scripts.get("locks/release")
    lease_ms = int(core.settings.waiter_lease * 1000)
    pairs = []
    for index in range(n):
        where, token = place(core, "lock", f"raw:{index}"), core.new_token()
        # token, weight, limit, ttl, lease of a place in the queue, style, owner, channels
        taking = (token, 1, 1, TTL_MS, lease_ms, "f", core.owner, where.channels)
        giving = (token, where.channels)
        _check_counts(acquire.source, where.keys, taking)
        _check_counts(release.source, where.keys, giving)
        pairs.append((acquire.pack(where.keys, taking), release.pack(where.keys, giving)))
    return pairs


@functools.lru_cache(maxsize=8)
def _declared(source: str) -> tuple[int, int]:
    """How many KEYS and ARGV a script's header declares."""
    counts, kind = {"KEYS": 0, "ARGV": 0}, ""
    for line in source.splitlines():
        found = re.match(r"-- (KEYS|ARGV|    )  (\d+) ", line)
        if found:
            kind = found.group(1).strip() or kind
            counts[kind] = int(found.group(2))
        elif line.startswith("-- returns"):
            break
    return counts["KEYS"], counts["ARGV"]


def _check_counts(source: str, keys: Sequence[object], arguments: Sequence[object]) -> None:
    # A script takes superfluous arguments without a word: a stale load would look like a valid one.
    if (len(keys), len(arguments)) != _declared(source):
        raise SystemExit("raw_requests does not match the header of the script: adjust it")


def raw_scripts() -> list[bytes]:
    """SCRIPT LOAD commands for what `raw_requests` calls."""
    from holdfast.engine.scripts import Scripts

    return [Scripts().get(name).pack_load() for name in ("locks/acquire", "locks/release")]


# --- the load ---------------------------------------------------------------------------------------------------------
def blocks(pairs: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Writes of PIPELINE commands, without end. A name is never in two blocks that are in flight together."""
    half = PIPELINE // 2
    groups = [pairs[i : i + half] for i in range(0, len(pairs) - half + 1, half)]
    packed = [b"".join([*(a for a, _ in group), *(r for _, r in group)]) for group in groups]
    return itertools.cycle(packed)


def load(addr: str, seconds: float) -> dict[str, object]:
    host, _, port = addr.rpartition(":")
    writes, words = blocks(raw_requests(PAIRS)), collections.Counter[str]()
    selector = selectors.DefaultSelector()
    connections = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
    try:
        _prepare(connections[0])
        started = time.monotonic()
        deadline = started + seconds
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, [hiredis.Reader(), PIPELINE])
            connection.sendall(next(writes))
        flying = len(connections)
        while flying:
            for key, _ in selector.select(10):
                if not _take(key.fileobj, key.data, words):  # type: ignore[arg-type]
                    continue
                if time.monotonic() < deadline:
                    key.data[1] = PIPELINE
                    key.fileobj.sendall(next(writes))  # type: ignore[union-attr]
                else:
                    flying -= 1
        took = time.monotonic() - started
    finally:
        selector.close()
        for connection in connections:
            connection.close()
    if words.keys() != {"granted", "released"}:
        raise SystemExit(f"expected every request to be granted or released, got {dict(words)}")
    return {"pairs_per_s": sum(words.values()) / 2 / took, "replies": dict(words)}


def _prepare(connection: socket.socket) -> None:
    reader = hiredis.Reader()
    for command in raw_scripts():
        connection.sendall(command)
        while (reply := reader.gets()) is False:
            reader.feed(connection.recv(65536))
        if isinstance(reply, hiredis.ReplyError):
            raise reply


def _take(connection: socket.socket, state: list[object], words: collections.Counter[str]) -> bool:
    """Read what is there; True when the block is answered in full."""
    reader, missing = state
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


if __name__ == "__main__":
    print(json.dumps(load(sys.argv[1], float(sys.argv[2]))))
