"""Holdfast's part of `noop`, run like the other contestants' (see bench/peers/python/moving.py)."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence

from bench.peers.python.moving import Message, Put, Tally, main, ready
from holdfast import Holdfast
from holdfast.runs.active import ActiveRun
from holdfast.sync.active import ActiveRun as BlockingRun

RUNS = "noop"


async def work(addr: str, concurrency: int, how: str = "asyncio") -> None:
    tally = Tally()
    async with Holdfast(f"redis://{addr}") as hf:

        async def absorb(run: ActiveRun) -> None:
            tally.add(run.input)

        def absorb_in_a_thread(run: BlockingRun) -> None:
            tally.add(run.input)

        hf.runner(hf.runs(RUNS), concurrency=concurrency, resumable=True)(
            absorb_in_a_thread if how == "threads" else absorb
        )
        working = asyncio.create_task(hf.work())
        ready(tally)
        await working


@contextlib.asynccontextmanager
async def sender(addr: str) -> AsyncIterator[Put]:
    async with Holdfast(f"redis://{addr}") as hf:
        runs = hf.runs(RUNS)

        async def put(user: str, messages: Sequence[Message]) -> None:
            await runs.start(uuid.uuid4().hex, messages)

        yield put


if __name__ == "__main__":
    main(work, sender)
