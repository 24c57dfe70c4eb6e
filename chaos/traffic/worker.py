"""Absorbs into SQL with the shipped store, or, with the guard off, with one that checks nothing."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from chaos.traffic.producer import BUFFER, CAPACITY
from holdfast import Holdfast
from holdfast.memory import Memory, Store

LEASE = 2.0


class Careless(Store):
    """Without the fence, and without the keys of batch and message: what many sinks are."""

    def _check_fence(self, connection: Any, origin: Any) -> None:
        return

    def _claim(self, connection: Any, origin: Any, agent: str) -> int | None:
        unchecked = dataclasses.replace(origin, batch=f"{origin.batch}.{random.getrandbits(64)}")
        return super()._claim(connection, unchecked, agent)

    def _row(self, *found: Any) -> dict[str, Any]:
        return {**super()._row(*found), "source": None}

    def done(self, batch: Any) -> frozenset[str]:
        return frozenset()


async def main(url: str, database: str, guard: bool, busy: float) -> None:
    memory = Memory(database)
    if not guard:
        memory.store = Careless(database)
    async with memory, Holdfast(url, call_timeout=0.5, retry_for=10.0, connect_timeout=1.0, sweep=1.0) as hf:
        inbox = hf.buffer(BUFFER, capacity=CAPACITY)

        @hf.absorber(
            inbox, threshold=10, max_age=1.0, lease=LEASE, concurrency=8, max_attempts=10_000, backoff=0.05,
            backoff_most=1.0, timeout=30,
        )  # fmt: skip
        async def remember(batch: Any) -> None:
            await memory.absorb(batch)
            await asyncio.sleep(random.random() * 2 * busy)  # other work: room for a kill or a pause before the ack

        print("working", flush=True)
        await hf.work()


def arguments() -> Sequence[Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("database")
    parser.add_argument("--guard", choices=("on", "off"), default="on")
    parser.add_argument("--busy", type=float, default=0.05)
    options = parser.parse_args()
    return options.url, options.database, options.guard == "on", options.busy


if __name__ == "__main__":
    asyncio.run(main(*arguments()))
