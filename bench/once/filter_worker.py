"""The process that asks which of a hundred ids are new (protocol: bench/peers/python/calling.py).

python -m bench.once.filter_worker LIB ADDR SECONDS PHASE …

Phases: `fresh`, no id was ever seen; `half`, every other id is known.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from ..peers.python.calling import Call, main

IDS, WITHIN = 100, 300
KNOWN = 5_000
SPACE = "orders"

Filter = Callable[[Sequence[str]], Awaitable[Sequence[str]]]


async def phases(only_new: Filter) -> Mapping[str, Call]:
    """A call answers how many were new."""
    known = [f"known-{number}" for number in range(KNOWN)]
    for at in range(0, KNOWN, IDS):
        await only_new(known[at : at + IDS])

    async def fresh(who: str, number: int) -> int:
        return len(await only_new([f"order-{who}-{number}-{at}" for at in range(IDS)]))

    async def half(who: str, number: int) -> int:
        half = IDS // 2
        at = number * half % KNOWN
        ids = [f"order-{who}-{number}-{place // 2}" for place in range(IDS)]
        ids[::2] = known[at : at + half]
        return len(await only_new(ids))

    return {"fresh": fresh, "half": half}


@contextlib.asynccontextmanager
async def holdfast(addr: str) -> AsyncIterator[Mapping[str, Call]]:
    from holdfast import Holdfast

    async with Holdfast(f"redis://{addr}") as hf:
        yield await phases(lambda ids: hf.filter_new(SPACE, ids, WITHIN))


@contextlib.asynccontextmanager
async def one_by_one(addr: str) -> AsyncIterator[Mapping[str, Call]]:
    from redis.asyncio import Redis

    async with Redis.from_url(f"redis://{addr}") as client:

        async def only_new(ids: Sequence[str]) -> list[str]:
            return [one for one in ids if await client.set(f"seen:{SPACE}:{one}", 1, nx=True, ex=WITHIN)]

        yield await phases(only_new)


@contextlib.asynccontextmanager
async def pipeline(addr: str) -> AsyncIterator[Mapping[str, Call]]:
    from redis.asyncio import Redis

    async with Redis.from_url(f"redis://{addr}") as client:

        async def only_new(ids: Sequence[str]) -> list[str]:
            async with client.pipeline(transaction=False) as pipe:
                for one in ids:
                    pipe.set(f"seen:{SPACE}:{one}", 1, nx=True, ex=WITHIN)
                return [one for one, new in zip(ids, await pipe.execute(), strict=True) if new]

        yield await phases(only_new)


LIBS = {"holdfast": holdfast, "one-by-one": one_by_one, "pipeline": pipeline}

if __name__ == "__main__":
    main(LIBS[sys.argv[1]], sys.argv[2:])
