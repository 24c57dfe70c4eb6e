"""Celery on its Redis broker, acknowledging late: what makes it keep a task whose worker dies. No results, no events.

Its pool is threads: of those that run 32 tasks at a time the fastest for tasks that do nothing (tried: prefork and
gevent had about three quarters of it). Gossip, mingling and remote control are off, because there is one worker.
`apply_async` blocks, so the callers of the sender take turns; with threads around it it was no faster.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from celery import Celery, Task
from celery.signals import worker_ready

from bench.peers.python.moving import Message, Put, Tally, main, ready

tally = Tally()


def absorb(user: str, messages: list[Message]) -> None:
    tally.add(messages)


def _task(addr: str) -> tuple[Celery, Task]:
    app = Celery("bench", broker=f"redis://{addr}/0")
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
    )
    return app, app.task(absorb, name="absorb")


async def work(addr: str, concurrency: int) -> None:
    app, _ = _task(addr)

    def started(**_: object) -> None:
        ready(tally)

    worker_ready.connect(started)
    # It has a loop of its own and does not give this one back: nothing else runs in it.
    app.Worker(
        pool="threads", concurrency=concurrency, loglevel="ERROR", quiet=True,
        without_gossip=True, without_mingle=True, without_heartbeat=True,
    ).start()  # fmt: skip


@contextlib.asynccontextmanager
async def sender(addr: str) -> AsyncIterator[Put]:
    _, task = _task(addr)

    async def put(user: str, messages: Sequence[Message]) -> None:
        task.apply_async((user, list(messages)))

    yield put


if __name__ == "__main__":
    main(work, sender)
