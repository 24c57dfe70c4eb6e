"""The process that holds very many locks (protocol: bench/fleet.py, with a report of its own instead of rows).

python -m bench.locks.many_worker LIB ADDR COUNT TTL SECONDS
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from .worker import wait_for_go

BATCH = 1000

# Takes a batch of names and answers with one "is it lost?" per lock.
Take = Callable[[list[str]], Awaitable[list[Callable[[], bool]]]]


@contextlib.asynccontextmanager
async def holdfast(addr: str, ttl: float) -> AsyncIterator[Take]:
    from holdfast import Holdfast

    async with Holdfast(f"redis://{addr}") as client:

        async def take(names: list[str]) -> list[Callable[[], bool]]:
            leases = await client.acquire_many(names, ttl=ttl)
            if any(lease is None for lease in leases):
                raise RuntimeError("a lock that nobody holds was not granted")
            return [lambda lease=lease: lease.lost or lease.remaining() <= 0 for lease in leases]

        yield take


@contextlib.asynccontextmanager
async def redis_py(addr: str, ttl: float) -> AsyncIterator[Take]:
    """Memory only: redis-py's Lock has no renewal, so its locks are taken for long enough and left alone."""
    from redis.asyncio import Redis

    async with Redis.from_url(f"redis://{addr}") as client:

        async def take(names: list[str]) -> list[Callable[[], bool]]:
            locks = [client.lock(name, timeout=ttl * 100) for name in names]
            for start in range(0, len(locks), 50):
                await asyncio.gather(*(lock.acquire() for lock in locks[start : start + 50]))
            return [lambda lock=lock: lock.local.token is None for lock in locks]

        yield take


LIBS = {"holdfast-async": holdfast, "redis-py-async": redis_py}


async def stolen_by_a_stranger(addr: str, count: int, ttl: float) -> int:
    """What another client is granted of a sample of the names: the server's word, where `lost` is the holder's own."""
    from holdfast import Holdfast

    names = [f"many:{i}" for i in range(0, count, max(1, count // BATCH))]
    async with Holdfast(f"redis://{addr}") as other:
        return sum(lease is not None for lease in await other.acquire_many(names, ttl=ttl))


def resident_bytes() -> int:
    gc.collect()
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def say(**report: object) -> None:
    print(json.dumps(report), flush=True)


async def run(lib: str, addr: str, count: int, ttl: float, seconds: float) -> None:
    async with LIBS[lib](addr, ttl) as take:
        await take([f"warm-up:{i}" for i in range(BATCH)])
        wait_for_go()
        before, started = resident_bytes(), time.monotonic()
        lost: list[Callable[[], bool]] = []
        for start in range(0, count, BATCH):
            lost += await take([f"many:{i}" for i in range(start, min(start + BATCH, count))])
        taking = time.monotonic() - started
        resident = resident_bytes() - before
        say(resident=resident, taking=taking)
        await asyncio.to_thread(sys.stdin.readline)  # the bench reads the server's memory and starts its clock

        cpu, begun, late = time.process_time(), time.monotonic(), 0.0
        while (rest := begun + seconds - time.monotonic()) > 0:
            nap = min(0.1, rest)
            slept = time.monotonic()
            await asyncio.sleep(nap)
            late = max(late, time.monotonic() - slept - nap)
        elapsed = time.monotonic() - begun
        cpu = time.process_time() - cpu
        gone = sum(1 for is_lost in lost if is_lost())
        stolen = await stolen_by_a_stranger(addr, count, ttl) if lib.startswith("holdfast") else 0
        say(
            lost=gone,
            stolen=stolen,
            cpu_per_s=cpu / elapsed,
            loop_late_ms=late * 1000,
            resident=resident_bytes() - before,
        )
        await asyncio.to_thread(sys.stdin.readline)
        os._exit(0)  # a hundred thousand releases are not part of the measurement; the server is flushed anyway


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])))
