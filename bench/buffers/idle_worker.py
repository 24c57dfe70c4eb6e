"""A process with several idle workers, each with a client and connections of its own (protocol: bench/fleet.py).

python -m bench.buffers.idle_worker ADDR WORKERS
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time

from holdfast import Holdfast
from holdfast.buffers.batch import Batch


async def run(addr: str, workers: int) -> None:
    async def nothing(_: Batch) -> None:
        return None

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Holdfast(f"redis://{addr}")) for _ in range(workers)]
        for hf in clients:
            hf.absorber(hf.buffer("idle"), threshold=10)(nothing)
        working = [asyncio.create_task(hf.work()) for hf in clients]
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        before = time.process_time()
        await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps({"cpu": time.process_time() - before}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for hf in clients:
            hf.stop_work()
        await asyncio.gather(*working)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
