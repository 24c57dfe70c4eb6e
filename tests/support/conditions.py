"""Waiting for a condition, never for a time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any


class TooSlow(AssertionError):
    """A condition did not come true in time: on a busy machine that may be all that is wrong."""


_patience: contextvars.ContextVar[float] = contextvars.ContextVar("patience", default=1.0)


@contextlib.contextmanager
def patience(times: float) -> Iterator[None]:
    """Inside, `until` waits so many times as long as it is told to."""
    before = _patience.set(times)
    try:
        yield
    finally:
        _patience.reset(before)


def patiently(seconds: float) -> float:
    return seconds * _patience.get()


async def until(condition: Callable[[], Any], within: float = 20.0, what: str = "the condition") -> Any:
    """Poll until it is true; answers its value."""
    within = patiently(within)
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise TooSlow(f"{what} did not come true within {within} s")
        await asyncio.sleep(0.005)


def until_blocking(condition: Callable[[], Any], within: float = 20.0, what: str = "the condition") -> Any:
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TooSlow(f"{what} did not come true within {within} s")
        time.sleep(0.005)
    return value
