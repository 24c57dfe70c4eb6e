"""The process that takes locks and appends, and reports to the fleet or not (protocol: bench/fleet.py, own reports).

python -m bench.node.report_worker REPORT ADDR SECONDS KIND …

Kinds: `lock`, acquire and release a name of the caller's own; `append`, one message more for a user of its own, in a
buffer so large that nothing is dropped. For each it warms up, prints "ready", starts at a line from standard input and
prints `{"done": …, "took": …, "cpu": …}`: calls, seconds, and processor seconds of the whole process. After the last it
stays, and ends without a goodbye.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from holdfast import Holdfast

from ..buffers.append_worker import DATA

CALLERS = 50
CAPACITY = 100_000
WARM_UP = 0.2

Call = Callable[[str, int], Awaitable[bool]]


def calls(hf: Holdfast) -> Mapping[str, Call]:
    """Each answers whether it was right."""
    inbox = hf.buffer("report", capacity=CAPACITY)

    async def lock(who: str, number: int) -> bool:
        lease = await hf.lock(f"lock-{who}").acquire()
        await lease.release()  # raises if it was lost
        return True

    async def append(who: str, number: int) -> bool:
        return (await inbox.append(f"user-{who}", DATA)).length == number + 1

    return {"lock": lock, "append": append}


async def work(call: Call, who: str, seconds: float) -> int:
    done, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not await call(who, done):
            raise SystemExit(f"call {done} of {who} answered something else")
        done += 1
    return done


async def everybody(call: Call, kind: str, seconds: float) -> dict[str, float]:
    cpu, started = time.process_time(), time.monotonic()
    done = await asyncio.gather(*(work(call, f"{kind}-{caller}", seconds) for caller in range(CALLERS)))
    took = time.monotonic() - started
    return {"done": float(sum(done)), "took": took, "cpu": time.process_time() - cpu}


async def run(report: float, addr: str, seconds: float, kinds: Sequence[str]) -> None:
    async with Holdfast(f"redis://{addr}", report=report) as hf:
        known = calls(hf)
        for kind in kinds:
            await everybody(known[kind], f"warm-{kind}", WARM_UP)
            print("ready", flush=True)
            if not await asyncio.to_thread(sys.stdin.readline):
                break
            print(json.dumps(await everybody(known[kind], kind, seconds)), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(run(float(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:]))
