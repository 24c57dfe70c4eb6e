"""Holdfast's part of `absorb` and `wake`, run like the other contestants' (see bench/peers/python/moving.py)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from bench.peers.python.moving import RUN, Message, Put, Tally, main, ready
from holdfast import Holdfast
from holdfast.buffers.batch import Batch

BUFFER = "absorb"


async def work(addr: str, concurrency: int) -> None:
    tally = Tally()
    async with Holdfast(f"redis://{addr}") as hf:
        inbox = hf.buffer(BUFFER)

        # At most ten in a batch: users get a multiple of ten, so all of it is due in the end.
        @hf.absorber(inbox, threshold=RUN, batch=RUN, concurrency=concurrency)
        async def absorb(batch: Batch) -> None:
            tally.add([message.data for message in batch.messages])

        working = asyncio.create_task(hf.work())
        while (await inbox.totals()).idle_workers == 0 and not working.done():
            await asyncio.sleep(0.05)
        ready(tally)
        await working


@contextlib.asynccontextmanager
async def sender(addr: str) -> AsyncIterator[Put]:
    async with Holdfast(f"redis://{addr}") as hf:
        inbox = hf.buffer(BUFFER)

        async def put(user: str, messages: Sequence[Message]) -> None:
            if len(messages) == 1:
                await inbox.append(user, messages[0])
            else:
                await inbox.extend(user, messages)

        yield put


if __name__ == "__main__":
    main(work, sender)
