"""SAQ: jobs on Redis lists. Results and finished jobs are not kept (ttl -1), two attempts; otherwise its defaults.

By default a job has one attempt, and is given up when its worker dies: with two it is run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis.asyncio import Redis
from saq import Worker
from saq.queue.redis import RedisQueue

from bench.peers.python.moving import CALLERS, Message, Put, Tally, main, ready


async def work(addr: str, concurrency: int) -> None:
    tally = Tally()

    async def absorb(_: Any, *, user: str, messages: list[Message]) -> None:
        tally.add(messages)

    async def started(_: Any) -> None:
        ready(tally)

    queue = RedisQueue(Redis.from_url(f"redis://{addr}"))
    await queue.connect()
    await Worker(queue, [("absorb", absorb)], concurrency=concurrency, startup=started).start()


@contextlib.asynccontextmanager
async def sender(addr: str) -> AsyncIterator[Put]:
    # Its limit of 20 operations at a time would be measured otherwise, and not what it can do.
    queue = RedisQueue(Redis.from_url(f"redis://{addr}"), max_concurrent_ops=CALLERS)
    await queue.connect()

    async def put(user: str, messages: Sequence[Message]) -> None:
        await queue.enqueue("absorb", user=user, messages=messages, ttl=-1, retries=2)

    yield put


if __name__ == "__main__":
    main(work, sender)
