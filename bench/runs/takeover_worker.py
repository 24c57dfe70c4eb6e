"""A worker of `takeover`: says when a handler starts; keeps a run of the first attempt until the process is killed.

python -m bench.runs.takeover_worker ADDR LEASE
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from holdfast import Holdfast
from holdfast.runs.active import ActiveRun

from ..peers.python.moving import end_with_input

RUNS = "takeover"


async def work(addr: str, lease: float) -> None:
    async with Holdfast(f"redis://{addr}") as hf:

        @hf.runner(hf.runs(RUNS, lease=lease), resumable=True)
        async def hold(run: ActiveRun) -> None:
            print(json.dumps({"run": run.id, "attempt": run.attempt, "at": time.monotonic_ns()}), flush=True)
            if run.attempt == 1:
                await asyncio.sleep(600)

        working = asyncio.create_task(hf.work())
        print("ready", flush=True)
        await working


if __name__ == "__main__":
    end_with_input()
    asyncio.run(work(sys.argv[1], float(sys.argv[2])))
