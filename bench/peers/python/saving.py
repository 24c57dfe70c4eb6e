"""Saving entries of sessions: what every contestant of `save` runs. Only the standard library, as in `moving`.

    python -m bench.peers.python.NAME_peer ADDR SECONDS CALLERS

It prints "ready", starts at a line from standard input, prints one JSON line `{"done": …, "took": …, "times": […]}`
(the times of single calls, in ns, where there is one caller), and ends when standard input is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

ENTRIES, TTL = 100, 3600
WARM_UP = 0.2
TEXT = "could you move the meeting to Thursday?"

Save = Callable[[str], Awaitable[object]]
Opener = Callable[[str, list[str]], contextlib.AbstractAsyncContextManager[Save]]


async def _call(save: Save, session: str, seconds: float, times: list[int] | None) -> int:
    clock, done = time.monotonic_ns, 0
    deadline = clock() + int(seconds * 1e9)
    while (start := clock()) < deadline:
        await save(session)
        done += 1
        if times is not None:
            times.append(clock() - start)
    return done


async def _run(opener: Opener, addr: str, seconds: float, callers: int) -> None:
    sessions = [f"session-{number}" for number in range(callers)]
    async with opener(addr, sessions) as save:
        await asyncio.gather(*(_call(save, session, WARM_UP, None) for session in sessions))
        print("ready", flush=True)
        if not await asyncio.to_thread(sys.stdin.readline):
            return
        times: list[int] | None = [] if callers == 1 else None
        started = time.monotonic()
        done = sum(await asyncio.gather(*(_call(save, session, seconds, times) for session in sessions)))
        took = time.monotonic() - started
        print(json.dumps({"done": done, "took": took, "times": times or []}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        os._exit(0)


def main(opener: Opener) -> None:
    """`opener(addr, sessions)` gives what saves one entry in a session."""
    asyncio.run(_run(opener, sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
