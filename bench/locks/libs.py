"""The lock libraries behind one small interface: open a client, then `release = acquire(name)`.

Everyone makes the lock object anew for each acquisition, as `with client.lock(name):` does in a user's code, asks for
a 30 s lease, waits without a limit, and otherwise keeps the library's defaults.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

TTL = 30

Acquire = Callable[[str], Callable[[], object]]
AsyncAcquire = Callable[[str], Awaitable[Callable[[], Awaitable[object]]]]


@contextlib.asynccontextmanager
async def holdfast_async(addr: str, *, fair: bool = True) -> AsyncIterator[AsyncAcquire]:
    from holdfast import Holdfast

    async with Holdfast(f"redis://{addr}") as client:

        async def acquire(name: str) -> Callable[[], Awaitable[object]]:
            lease = await client.lock(name, ttl=TTL, fair=fair).acquire()
            return lease.release

        yield acquire


@contextlib.asynccontextmanager
async def redis_py_async(addr: str, *, sleep: float = 0.1) -> AsyncIterator[AsyncAcquire]:
    from redis.asyncio import Redis

    async with Redis.from_url(f"redis://{addr}") as client:

        async def acquire(name: str) -> Callable[[], Awaitable[object]]:
            lock = client.lock(name, timeout=TTL, sleep=sleep)
            await lock.acquire()
            return lock.release

        yield acquire


@contextlib.contextmanager
def holdfast_sync(addr: str) -> Iterator[Acquire]:
    from holdfast.sync import Holdfast

    with Holdfast(f"redis://{addr}") as client:

        def acquire(name: str) -> Callable[[], object]:
            return client.lock(name, ttl=TTL).acquire().release

        yield acquire


@contextlib.contextmanager
def redis_py_sync(addr: str) -> Iterator[Acquire]:
    from redis import Redis

    with Redis.from_url(f"redis://{addr}") as client:

        def acquire(name: str) -> Callable[[], object]:
            lock = client.lock(name, timeout=TTL)
            lock.acquire()
            return lock.release

        yield acquire


@contextlib.contextmanager
def python_redis_lock(addr: str) -> Iterator[Acquire]:
    import redis_lock
    from redis import Redis

    # It waits in BLPOP for as long as the lease lasts; the client must not give up before.
    with Redis.from_url(f"redis://{addr}", socket_timeout=None) as client:

        def acquire(name: str) -> Callable[[], object]:
            lock = redis_lock.Lock(client, name, expire=TTL)
            lock.acquire()
            return lock.release

        yield acquire


@contextlib.contextmanager
def pottery(addr: str) -> Iterator[Acquire]:
    from pottery import Redlock
    from redis import Redis

    with Redis.from_url(f"redis://{addr}") as client:

        def acquire(name: str) -> Callable[[], object]:
            lock = Redlock(key=name, masters={client}, auto_release_time=TTL)
            lock.acquire()
            return lock.release

        yield acquire


@contextlib.contextmanager
def ping(addr: str) -> Iterator[Acquire]:
    """No lock at all: one round trip on a plain socket, which is what the ideal is made of."""
    host, _, port = addr.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def acquire(_: str) -> Callable[[], object]:
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            if connection.recv(64) != b"+PONG\r\n":
                raise ConnectionError("unexpected answer to PING")
            return int

        yield acquire


ASYNC: dict[str, Callable[[str], contextlib.AbstractAsyncContextManager[AsyncAcquire]]] = {
    "holdfast-async": holdfast_async,
    "holdfast-barging": lambda addr: holdfast_async(addr, fair=False),
    "redis-py-async": redis_py_async,
    "redis-py-1ms": lambda addr: redis_py_async(addr, sleep=0.001),
}
SYNC: dict[str, Callable[[str], contextlib.AbstractContextManager[Acquire]]] = {
    "holdfast-sync": holdfast_sync,
    "redis-py-sync": redis_py_sync,
    "python-redis-lock": python_redis_lock,
    "pottery": pottery,
    "ping": ping,
}
