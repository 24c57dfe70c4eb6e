"""streaq: tasks on Redis streams. Results are not kept (ttl 0), no task logs; otherwise its defaults."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import anyio
from streaq import Worker

from bench.peers.python.moving import Message, Put, Tally, main, ready

tally = Tally()


async def absorb(user: str, messages: list[Message]) -> None:
    tally.add(messages)


async def work(addr: str, concurrency: int) -> None:
    worker = Worker(redis_url=f"redis://{addr}", concurrency=concurrency, handle_signals=False)
    worker.task(ttl=0, silent=True, name="absorb")(absorb)
    async with anyio.create_task_group() as group:
        await group.start(worker.run_async)
        ready(tally)


@contextlib.asynccontextmanager
async def sender(addr: str) -> AsyncIterator[Put]:
    worker = Worker(redis_url=f"redis://{addr}", handle_signals=False)
    task = worker.task(ttl=0, silent=True, name="absorb")(absorb)
    async with worker:

        async def put(user: str, messages: Sequence[Message]) -> None:
            await task.enqueue(user, list(messages))

        yield put


if __name__ == "__main__":
    main(work, sender)
