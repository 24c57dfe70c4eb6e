"""pydocket: tasks on Redis streams. Finished tasks are not kept (execution_ttl 0); otherwise its defaults.

A worker that is full looks for free places every 0.25 s unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

from docket import Docket, Worker

from bench.peers.python.moving import Message, Put, Tally, main, ready

tally = Tally()


async def absorb(user: str, messages: list[Message]) -> None:
    tally.add(messages)


def _docket(addr: str) -> Docket:
    return Docket("bench", f"redis://{addr}/0", execution_ttl=timedelta(0))


async def work(addr: str, concurrency: int, check: str = "0.25") -> None:
    every = timedelta(seconds=float(check))
    logging.getLogger("docket").setLevel(logging.ERROR)
    async with _docket(addr) as docket:
        docket.register(absorb)
        async with Worker(docket, concurrency=concurrency, minimum_check_interval=every) as worker:
            working = asyncio.create_task(worker.run_forever())
            ready(tally)
            await working


@contextlib.asynccontextmanager
async def sender(addr: str) -> AsyncIterator[Put]:
    async with _docket(addr) as docket:
        docket.register(absorb)

        async def put(user: str, messages: Sequence[Message]) -> None:
            await docket.add(absorb)(user, list(messages))

        yield put


if __name__ == "__main__":
    main(work, sender)
