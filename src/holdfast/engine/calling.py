"""Calling handlers: coroutine functions as they are, plain functions in threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def is_blocking(handler: Callable[..., Any]) -> bool:
    """A plain function: it runs in a thread, and what it gets has blocking methods."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - an object whose __call__ is async counts too
    return not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call))


async def in_thread(function: Callable[[], T]) -> T:
    """In a thread of its own that does not keep the process from ending: it cannot be stopped, only left behind.

    It sees the caller's context variables, such as the span that is open."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (function(), None)
        except BaseException as error:
            odd = isinstance(error, StopIteration) or not isinstance(error, Exception)
            outcome = (None, RuntimeError(f"the handler raised {error!r}") if odd else error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="holdfast-handler", daemon=True).start()
    return await done
