"""The two processes of `deliver` (protocol: bench/fleet.py, with reports of their own).

python -m bench.runs.deliver_worker emit ADDR DELAY EVENTS PACE_MS
python -m bench.runs.deliver_worker read ADDR READERS

`emit` owns the run: it emits one event, prints "ready", and at a line from standard input emits EVENTS more, one every
PACE_MS, each with the time just before its call. `read` prints "ready" when all its readers have the first event, and
its report when the run has ended for all of them. DELAY is `emit_delay`, or `default`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from holdfast import Holdfast

from ..stats import percentile

RUNS, RUN = "deliver", "run-1"
TEXT = "could you move the meeting to Thursday?"
SILENCE = 60.0  # a reader that hears nothing for so long fails, and its turn with it


async def emit(addr: str, delay: str, events: int, pace: float) -> None:
    async with Holdfast(f"redis://{addr}") as hf:
        agent = hf.runs(RUNS, emit_delay=None if delay == "default" else float(delay))
        async with await agent.claim(RUN) as run:
            await run.emit({"sent": 0, "text": TEXT})
            await run.flush()
            print("ready", flush=True)
            if not await asyncio.to_thread(sys.stdin.readline):
                return
            for _ in range(events):
                await run.emit({"sent": time.monotonic_ns(), "text": TEXT})
                await asyncio.sleep(pace)
        print(json.dumps({"emitted": events}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


async def read(addr: str, readers: int) -> None:
    delays: list[int] = []
    begun = 0
    clock = time.monotonic_ns

    async def follow() -> int:
        nonlocal begun
        seen = 0
        async for event in agent.events(RUN, timeout=SILENCE):
            now = clock()
            if event.kind != "data":
                continue
            if sent := event.data["sent"]:
                delays.append(now - sent)
                seen += 1
            else:
                begun += 1
                if begun == readers:
                    print("ready", flush=True)
        return seen

    async with Holdfast(f"redis://{addr}") as hf:
        agent = hf.runs(RUNS)
        counts = await asyncio.gather(*(follow() for _ in range(readers)))
        figures = {f"p{percent}": percentile(delays, percent) / 1e6 for percent in (50, 99)}
        print(json.dumps({"least": min(counts), "most": max(counts), **figures}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    role, address, *rest = sys.argv[1:]
    if role == "emit":
        asyncio.run(emit(address, rest[0], int(rest[1]), float(rest[2]) / 1000))
    else:
        asyncio.run(read(address, int(rest[0])))
