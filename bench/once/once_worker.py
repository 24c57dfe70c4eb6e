"""The process that asks whether an id is new (protocol: bench/peers/python/calling.py).

python -m bench.once.once_worker LIB ADDR SECONDS PHASE …

There is one phase, `once`; with the libraries that block, a caller is a thread.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Mapping

from ..peers.python.calling import BlockingCall, Call, main, main_blocking
from .filter_worker import SPACE, WITHIN


@contextlib.asynccontextmanager
async def holdfast(addr: str) -> AsyncIterator[Mapping[str, Call]]:
    from holdfast import Holdfast

    async with Holdfast(f"redis://{addr}") as hf:

        async def once(who: str, number: int) -> int:
            return await hf.once(SPACE, f"order-{who}-{number}", WITHIN)

        yield {"once": once}


@contextlib.asynccontextmanager
async def redis_py(addr: str) -> AsyncIterator[Mapping[str, Call]]:
    from redis.asyncio import Redis

    async with Redis.from_url(f"redis://{addr}") as client:

        async def once(who: str, number: int) -> int:
            return bool(await client.set(f"seen:{SPACE}:order-{who}-{number}", 1, nx=True, ex=WITHIN))

        yield {"once": once}


@contextlib.contextmanager
def holdfast_sync(addr: str) -> Iterator[Mapping[str, BlockingCall]]:
    from holdfast.sync import Holdfast

    with Holdfast(f"redis://{addr}") as hf:
        yield {"once": lambda who, number: hf.once(SPACE, f"order-{who}-{number}", WITHIN)}


@contextlib.contextmanager
def redis_py_sync(addr: str) -> Iterator[Mapping[str, BlockingCall]]:
    from redis import Redis

    with Redis.from_url(f"redis://{addr}") as client:
        yield {
            "once": lambda who, number: bool(
                client.set(f"seen:{SPACE}:order-{who}-{number}", 1, nx=True, ex=WITHIN)
            )
        }  # fmt: skip


ASYNC = {"holdfast": holdfast, "redis-py": redis_py}
SYNC = {"holdfast-sync": holdfast_sync, "redis-py-sync": redis_py_sync}

if __name__ == "__main__":
    lib, *arguments = sys.argv[1:]
    if lib in ASYNC:
        main(ASYNC[lib], arguments)
    else:
        main_blocking(SYNC[lib], arguments)
