"""The process that takes locks or appends, and reports to the fleet or not (protocol: bench/fleet.py, own reports).

python -m bench.node.report_worker REPORT ADDR SECONDS KIND

KIND is `lock`, acquire and release a name of the caller's own, or `append`, one message more for a user of its own, in
a buffer so large that nothing is dropped. For each line from standard input it works for so many seconds and prints
`{"done": …, "took": …, "cpu": …}`: calls, seconds, and processor seconds of the whole process. There is no goodbye.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

from holdfast import Holdfast

from ..buffers.append_worker import DATA

CALLERS = 50
CAPACITY = 100_000
WARM_UP = 0.3

Call = Callable[[int, int], Awaitable[bool]]


def calls(hf: Holdfast) -> Mapping[str, Call]:
    """Called with who calls and how often before; each answers whether it was right."""
    inbox, mine = hf.buffer("report", capacity=CAPACITY), os.getpid()

    async def lock(caller: int, number: int) -> bool:
        lease = await hf.lock(f"lock-{mine}-{caller}").acquire()
        await lease.release()  # raises if it was lost
        return True

    async def append(caller: int, number: int) -> bool:
        return (await inbox.append(f"user-{mine}-{caller}", DATA)).length == number + 1

    return {"lock": lock, "append": append}


async def work(call: Call, done: list[int], seconds: float) -> dict[str, float]:
    """All callers, for so long. `done` is how often each has called."""
    before, deadline = sum(done), time.monotonic() + seconds

    async def one(caller: int) -> None:
        while time.monotonic() < deadline:
            if not await call(caller, done[caller]):
                raise SystemExit(f"call {done[caller]} of caller {caller} answered something else")
            done[caller] += 1

    cpu, started = time.process_time(), time.monotonic()
    await asyncio.gather(*map(one, range(CALLERS)))
    took = time.monotonic() - started
    return {"done": float(sum(done) - before), "took": took, "cpu": time.process_time() - cpu}


async def run(report: float, addr: str, seconds: float, kind: str) -> None:
    async with Holdfast(f"redis://{addr}", report=report) as hf:
        call, done = calls(hf)[kind], [0] * CALLERS
        await work(call, done, WARM_UP)
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await work(call, done, seconds)), flush=True)
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(run(float(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]))
