"""The process that asks whether states are worth telling (protocol: bench/peers/python/calling.py).

python -m bench.once.gate_worker LIB ADDR SECONDS PHASE …

Phases: `check`, one thing at a time, up to 100 callers; `many`, a hundred things, up to 10 callers. All things are
known before, and each has one caller at a time. Of a hundred states one is another than before, one that its thing
never had.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..peers.python.calling import Call, main

THINGS = 10_000
WINDOW, KEEP = 300, 7 * 86_400
AT_ONCE = 100
STRIDE = 10

Thing = tuple[str, Any]
Check = Callable[[str, Any], Awaitable[bool]]
CheckMany = Callable[[Sequence[Thing]], Awaitable[Sequence[bool]]]


def state(thing: int, version: int) -> dict[str, Any]:
    """About 110 bytes of JSON."""
    return {
        "name": f"Hall {thing} at the river", "status": "open", "seats": version, "price": 19.5,
        "doors": ["north", "south"], "rain": False,
    }  # fmt: skip


class Things:
    """What is known of each, and so what must come out."""

    def __init__(self) -> None:
        self._versions = [0] * THINGS
        self._asked = [0] * (THINGS // AT_ONCE)

    def all(self) -> list[Thing]:
        return [(f"venue-{thing}", state(thing, 0)) for thing in range(THINGS)]

    def next(self, block: int) -> tuple[Thing, bool]:
        """The next of a block of a hundred, and whether it is another than before: another place in each round."""
        asked = self._asked[block]
        self._asked[block] = asked + 1
        changed = asked % AT_ONCE == asked // AT_ONCE % AT_ONCE
        thing = block * AT_ONCE + asked % AT_ONCE
        self._versions[thing] += changed
        return (f"venue-{thing}", state(thing, self._versions[thing])), changed


async def phases(check: Check, check_many: CheckMany) -> Mapping[str, Call]:
    """A call answers 1 if it was right."""
    things = Things()
    known = things.all()
    for at in range(0, THINGS, AT_ONCE):
        await check_many(known[at : at + AT_ONCE])

    def caller(who: str) -> int:
        return int(who.rpartition("-")[2])

    async def one(who: str, number: int) -> int:
        thing, changed = things.next(caller(who))
        return await check(*thing) == changed

    async def many(who: str, number: int) -> int:
        block = (caller(who) + STRIDE * number) % (THINGS // AT_ONCE)
        asked, changed = zip(*(things.next(block) for _ in range(AT_ONCE)), strict=True)
        return tuple(await check_many(asked)) == changed

    return {"check": one, "many": many}


@contextlib.asynccontextmanager
async def holdfast(addr: str) -> AsyncIterator[Mapping[str, Call]]:
    from holdfast import Holdfast

    async with Holdfast(f"redis://{addr}") as hf:
        gate = hf.gate("venues", WINDOW, keep=KEEP)

        async def check(key: str, now: Any) -> bool:
            return (await gate.check(key, now)).notify

        async def check_many(things: Sequence[Thing]) -> list[bool]:
            return [decision.notify for decision in await gate.check_many(things)]

        yield await phases(check, check_many)


@contextlib.asynccontextmanager
async def set_get(addr: str) -> AsyncIterator[Mapping[str, Call]]:
    """The last digest of each thing in one key: no window, no state before, and flapping is told each time."""
    from redis.asyncio import Redis

    def digest(now: Any) -> bytes:
        text = json.dumps(now, sort_keys=True, separators=(",", ":")).encode()
        return hashlib.blake2b(text, digest_size=16).digest()

    async with Redis.from_url(f"redis://{addr}") as client:

        async def check(key: str, now: Any) -> bool:
            new = digest(now)
            return bool(await client.set(f"gate:{key}", new, ex=KEEP, get=True) != new)

        async def check_many(things: Sequence[Thing]) -> list[bool]:
            digests = [digest(now) for _, now in things]
            async with client.pipeline(transaction=False) as pipe:
                for (key, _), new in zip(things, digests, strict=True):
                    pipe.set(f"gate:{key}", new, ex=KEEP, get=True)
                return [old != new for old, new in zip(await pipe.execute(), digests, strict=True)]

        yield await phases(check, check_many)


LIBS = {"holdfast": holdfast, "set-get": set_get}

if __name__ == "__main__":
    main(LIBS[sys.argv[1]], sys.argv[2:])
