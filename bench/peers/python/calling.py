"""One call again and again: what contestants of `filter`, `once`, `idempotent` and `gate` run. Standard library only.

    python -m … ADDR SECONDS PHASE …

A PHASE is `NAME:CALLERS`, such as `fresh:10`. For each of them the process warms up, prints "ready", starts at a line
from standard input, and prints one JSON line `{"done": …, "took": …, "answered": …, "times": […]}`: `answered` is the
sum of what the calls answered, `times` are those of single calls, in ns, where there is one caller. After the last one
it stays until standard input is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

WARM_UP = 0.1

Call = Callable[[str, int], Awaitable[int]]
"""Called with who calls, which occurs once, and the number of the call."""
BlockingCall = Callable[[str, int], int]
Opener = Callable[[str], contextlib.AbstractAsyncContextManager[Mapping[str, Call]]]
"""Gives the calls by their names in PHASE."""
BlockingOpener = Callable[[str], contextlib.AbstractContextManager[Mapping[str, BlockingCall]]]

Sum = tuple[int, int]
clock = time.monotonic_ns


def _phases(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for place, phase in enumerate(arguments):
        name, _, callers = phase.partition(":")
        yield name, [f"{place}-{caller}" for caller in range(int(callers))]


def _report(sums: Sequence[Sum], took: float, times: list[int] | None) -> None:
    done, answered = (sum(part) for part in zip(*sums, strict=True))
    print(json.dumps({"done": done, "took": took, "answered": answered, "times": times or []}), flush=True)


def _end() -> None:
    """When the bench closes our standard input. What an orderly end costs is not measured."""
    sys.stdin.readline()
    os._exit(0)


# -- asyncio ----------------------------------------------------------------------------------------------------------


async def _call(call: Call, who: str, seconds: float, times: list[int] | None = None) -> Sum:
    done = answered = 0
    deadline = clock() + int(seconds * 1e9)
    while (start := clock()) < deadline:
        answered += await call(who, done)
        done += 1
        if times is not None:
            times.append(clock() - start)
    return done, answered


async def _run(opener: Opener, addr: str, seconds: float, phases: Sequence[str]) -> None:
    async with opener(addr) as calls:
        for name, callers in _phases(phases):
            call = calls[name]
            await asyncio.gather(*(_call(call, f"warm-{who}", WARM_UP) for who in callers))
            print("ready", flush=True)
            if not await asyncio.to_thread(sys.stdin.readline):
                return
            times: list[int] | None = [] if len(callers) == 1 else None
            started = time.monotonic()
            sums = await asyncio.gather(*(_call(call, who, seconds, times) for who in callers))
            _report(sums, time.monotonic() - started, times)
        await asyncio.to_thread(_end)


def main(opener: Opener, arguments: Sequence[str]) -> None:
    addr, seconds, *phases = arguments
    asyncio.run(_run(opener, addr, float(seconds), phases))


# -- threads ----------------------------------------------------------------------------------------------------------


def _call_blocking(
    call: BlockingCall, who: str, seconds: float, gate: threading.Barrier, times: list[int] | None = None
) -> Sum:  # fmt: skip
    done = answered = 0
    gate.wait()
    deadline = clock() + int(seconds * 1e9)
    while (start := clock()) < deadline:
        answered += call(who, done)
        done += 1
        if times is not None:
            times.append(clock() - start)
    return done, answered


def main_blocking(opener: BlockingOpener, arguments: Sequence[str]) -> None:
    """A thread for each caller."""
    addr, seconds, *phases = arguments
    with opener(addr) as calls:
        for name, callers in _phases(phases):
            _run_blocking(calls[name], callers, float(seconds))
        _end()


def _run_blocking(call: BlockingCall, callers: list[str], seconds: float) -> None:
    gate = threading.Barrier(len(callers) + 1)
    with ThreadPoolExecutor(len(callers)) as threads:
        warming = [threads.submit(_call_blocking, call, f"warm-{who}", WARM_UP, gate) for who in callers]
        gate.wait()
        for each in warming:
            each.result()
        print("ready", flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        times: list[int] | None = [] if len(callers) == 1 else None
        running = [threads.submit(_call_blocking, call, who, seconds, gate, times) for who in callers]
        gate.wait()
        started = time.monotonic()
        sums = [each.result() for each in running]
        _report(sums, time.monotonic() - started, times)
