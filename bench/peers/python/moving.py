"""Moving messages from those who send them to a handler that only counts: what contestants of `absorb` and `noop` run.

    python -m bench.peers.python.NAME_peer work ADDR CONCURRENCY [OPTION]
    python -m bench.peers.python.NAME_peer put ADDR MESSAGES USERS GROUP PACE_MS

`work` prints "ready", then a JSON line whenever its counts have changed; it ends when standard input is closed. `put`
prints "ready", starts at a line from standard input, prints one JSON line at its end, and stays until standard input is
closed. GROUP messages go in one call. With a PACE there is one caller: it sends ten messages of a user, then waits so
many ms. OPTION is the contestant's own. Only the standard library is used here: the contestants' environments have
nothing of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

CALLERS = 100
RUN = 10  # messages of one user that come one after another: as many as make a batch
TEXT = "could you move the meeting to Thursday?"
REPORT_EVERY = 0.02

Message = dict[str, Any]
Put = Callable[[str, Sequence[Message]], Awaitable[object]]
Opener = Callable[[str], contextlib.AbstractAsyncContextManager[Put]]


def message(number: int) -> Message:
    """About 60 bytes of JSON."""
    return {"n": number, "text": TEXT}


class Tally:
    """What the handler of one process has seen. `add` is all that a handler does, also in threads."""

    def __init__(self) -> None:
        self.messages = 0
        self.batches = 0
        self.first = 0
        self.last = 0
        self.delays: list[float] = []
        self._lock = threading.Lock()

    def add(self, messages: Sequence[Message]) -> None:
        now = time.monotonic_ns()
        with self._lock:
            self.messages += len(messages)
            self.batches += 1
            self.first = self.first or now
            self.last = now
            sent = messages[-1].get("sent")
            if sent is not None:
                self.delays.append((now - sent) / 1e3)

    def report(self) -> None:
        """Print the counts whenever they have changed, until the process ends."""
        said = 0
        while True:
            time.sleep(REPORT_EVERY)
            if self.messages != said:
                with self._lock:
                    said = self.messages
                    figures = {"messages": said, "batches": self.batches, "first": self.first, "last": self.last}
                    delays, self.delays = self.delays, []
                print(json.dumps(figures | {"delays_us": delays}), flush=True)


def ready(tally: Tally) -> None:
    """To be called once the worker is listening."""
    print("ready", flush=True)
    threading.Thread(target=tally.report, daemon=True).start()


def end_with_input() -> None:
    """End the process when the bench closes our standard input. What an orderly end costs is not measured."""

    def watch() -> None:
        while sys.stdin.readline():
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


async def _call(put: Put, caller: int, messages: int, users: int, group: int) -> int:
    """One caller: ten messages of a user one after another, then the next user's; all its users, again and again."""
    mine = range(caller, users, CALLERS)
    done, share = 0, messages // CALLERS
    while mine and done < share:
        user = f"user-{mine[(done // RUN) % len(mine)]}"
        for at in range(0, RUN, group):
            await put(user, [message(done + at + i) for i in range(group)])
        done += RUN
    return done


async def _call_slowly(put: Put, messages: int, group: int, pace: float) -> int:
    """One message at a time to idle workers. Users are new ones; the last message of each ten says when it was sent."""
    for number in range(messages // RUN):
        ten = [message(i) for i in range(RUN)]
        early = ten[:-group] if group < RUN else []
        for one in early:
            await put(f"slow-{number}", [one])
        ten[-1]["sent"] = time.monotonic_ns()
        await put(f"slow-{number}", ten[-group:])
        await asyncio.sleep(pace)
    return messages // RUN * RUN


async def _put(opener: Opener, addr: str, messages: int, users: int, group: int, pace: float) -> None:
    async with opener(addr) as put:
        print("ready", flush=True)
        if not await asyncio.to_thread(sys.stdin.readline):
            return
        started = time.monotonic_ns()
        if pace:
            done = await _call_slowly(put, messages, group, pace)
        else:
            done = sum(await asyncio.gather(*(_call(put, i, messages, users, group) for i in range(CALLERS))))
        ended = time.monotonic_ns()
        print(json.dumps({"started": started, "ended": ended, "messages": done}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        os._exit(0)


def main(work: Callable[..., Coroutine[Any, Any, None]], opener: Opener) -> None:
    """`work(addr, concurrency, *option)` runs a worker; `opener(addr)` gives what sends messages of one user."""
    role, addr, *rest = sys.argv[1:]
    if role == "work":
        end_with_input()
        asyncio.run(work(addr, int(rest[0]), *rest[1:]))
    else:
        messages, users, group, pace = rest
        asyncio.run(_put(opener, addr, int(messages), int(users), int(group), float(pace) / 1000))
