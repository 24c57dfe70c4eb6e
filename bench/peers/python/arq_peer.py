"""arq: jobs in a sorted set that workers poll, every 0.5 s unless told otherwise. Results are not kept."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.peers.python.moving import Message, Put, Tally, main, ready


def _settings(addr: str) -> RedisSettings:
    host, _, port = addr.rpartition(":")
    return RedisSettings(host=host, port=int(port))


async def work(addr: str, concurrency: int, poll: str = "0.5") -> None:
    tally = Tally()
    logging.getLogger("arq").setLevel(logging.ERROR)

    async def absorb(_: Any, user: str, messages: list[Message]) -> None:
        tally.add(messages)

    async def started(_: Any) -> None:
        ready(tally)

    worker = Worker(
        [func(absorb, name="absorb", keep_result=0)],
        redis_settings=_settings(addr),
        max_jobs=concurrency,
        poll_delay=float(poll),
        keep_result=0,
        on_startup=started,
        handle_signals=False,
        log_results=False,
    )
    await worker.async_run()


@contextlib.asynccontextmanager
async def sender(addr: str) -> AsyncIterator[Put]:
    pool = await create_pool(_settings(addr))

    async def put(user: str, messages: Sequence[Message]) -> None:
        await pool.enqueue_job("absorb", user, messages)

    yield put


if __name__ == "__main__":
    main(work, sender)
