"""Waiting for somebody who may leave: a client that has gone stands in no line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from holdfast.node.problems import Refused

T = TypeVar("T")
Undo = Callable[[T], Awaitable[Any]]


async def while_there(request: Request, work: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
    """Do it as long as the client waits for the answer; when it leaves, and when this is cancelled, it is cancelled.

    Raises Refused when the client has left, which nobody reads. What was got at that very moment is given to `undo`; it
    may also have gone too late for that: look with `request.is_disconnected()` before handing out what would then be
    nobody's."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_left(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _given_up(task, undo)
        raise
    finally:
        gone.cancel()
    if task.done():
        return task.result()
    await _given_up(task, undo)
    raise left()


async def _given_up(task: asyncio.Task[T], undo: Undo[T] | None) -> None:
    task.cancel()
    await asyncio.wait({task})
    if undo is not None and not task.cancelled() and task.exception() is None:
        await undo(task.result())


def left() -> Refused:
    return Refused(408, "client-left", "stay until the answer comes: it was given up when the connection was closed")


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
