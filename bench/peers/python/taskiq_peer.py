"""taskiq with taskiq-redis: its stream broker, because that one acknowledges. No result backend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.peers.python.moving import Message, Put, Tally, main, ready

tally = Tally()


async def absorb(user: str, messages: list[Message]) -> None:
    tally.add(messages)


async def work(addr: str, concurrency: int) -> None:
    broker = RedisStreamBroker(f"redis://{addr}", consumer_id="0")
    broker.register_task(absorb, task_name="absorb")
    await broker.startup()
    receiving = asyncio.create_task(
        run_receiver_task(broker, max_async_tasks=concurrency, max_prefetch=concurrency, validate_params=False)
    )
    ready(tally)
    await receiving


@contextlib.asynccontextmanager
async def sender(addr: str) -> AsyncIterator[Put]:
    broker = RedisStreamBroker(f"redis://{addr}", consumer_id="0")
    task = broker.register_task(absorb, task_name="absorb")
    await broker.startup()

    async def put(user: str, messages: Sequence[Message]) -> None:
        await task.kiq(user, list(messages))

    yield put


if __name__ == "__main__":
    main(work, sender)
