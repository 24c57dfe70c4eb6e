"""Holdfast's part of `idempotent` (protocol: bench/peers/python/calling.py).

python -m bench.once.idempotent_worker asyncio|threads ADDR SECONDS PHASE …

Phases: `fresh`, every call has a key of its own; `stored`, all calls have the same one, whose result is there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Mapping

from ..peers.python.calling import BlockingCall, Call, main, main_blocking

TTL = 3600


@contextlib.asynccontextmanager
async def awaiting(addr: str) -> AsyncIterator[Mapping[str, Call]]:
    from holdfast import Holdfast

    made = 0
    async with Holdfast(f"redis://{addr}") as hf:

        @hf.idempotent(key="{order}", ttl=TTL)
        async def charge(order: str) -> dict[str, object]:
            nonlocal made
            made += 1
            return {"order": order, "number": made}

        known = await charge("known")

        async def fresh(who: str, number: int) -> int:
            order = f"{who}-{number}"
            return (await charge(order))["order"] == order

        async def stored(who: str, number: int) -> int:
            return await charge("known") == known

        yield {"fresh": fresh, "stored": stored}


@contextlib.contextmanager
def blocking(addr: str) -> Iterator[Mapping[str, BlockingCall]]:
    from holdfast.sync import Holdfast

    made = 0
    with Holdfast(f"redis://{addr}") as hf:

        @hf.idempotent(key="{order}", ttl=TTL)
        def charge(order: str) -> dict[str, object]:
            nonlocal made
            made += 1
            return {"order": order, "number": made}

        known = charge("known")

        def fresh(who: str, number: int) -> int:
            order = f"{who}-{number}"
            return charge(order)["order"] == order

        def stored(who: str, number: int) -> int:
            return charge("known") == known

        yield {"fresh": fresh, "stored": stored}


if __name__ == "__main__":
    if sys.argv[1] == "asyncio":
        main(awaiting, sys.argv[2:])
    else:
        main_blocking(blocking, sys.argv[2:])
