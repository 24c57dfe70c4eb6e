"""The two processes of `stop` (protocol: bench/fleet.py, with reports of their own).

python -m bench.runs.stop_worker work ADDR
python -m bench.runs.stop_worker stop ADDR TIMES

`work` runs handlers that wait, and notes when each was cancelled; it reports at a line from standard input. `stop`
starts one run after another, and stops it when it has been running for a moment. Times are of the monotonic clock, in
nanoseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from holdfast import Holdfast
from holdfast.runs.active import ActiveRun

RUNS = "stop"
POLL, MOMENT = 0.005, 0.02
PATIENCE = 20.0


async def work(addr: str) -> None:
    cancelled: dict[str, int] = {}
    async with Holdfast(f"redis://{addr}") as hf:

        @hf.runner(hf.runs(RUNS))
        async def wait(run: ActiveRun) -> None:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                cancelled[str(run.id)] = time.monotonic_ns()
                raise

        working = asyncio.create_task(hf.work())
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps({"cancelled": cancelled}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        hf.stop_work()
        await working


async def stop(addr: str, times: int) -> None:
    called: dict[str, int] = {}
    returned: list[int] = []
    async with Holdfast(f"redis://{addr}") as hf:
        agent = hf.runs(RUNS)
        print("ready", flush=True)
        if not await asyncio.to_thread(sys.stdin.readline):
            return
        for number in range(times):
            name = f"run-{number}"
            await agent.start(name)
            async with asyncio.timeout(PATIENCE):
                while (await agent.get(name)).state != "running":
                    await asyncio.sleep(POLL)
            await asyncio.sleep(MOMENT)  # the handler is in its await now, and both processes are idle
            called[name] = time.monotonic_ns()
            await agent.stop(name, "bench")
            returned.append(time.monotonic_ns() - called[name])
            if (ended := await agent.wait(name, timeout=PATIENCE)).state != "stopped":
                raise SystemExit(f"{name} was stopped and is {ended.state}")
        print(json.dumps({"called": called, "returned": returned}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    role, address, *rest = sys.argv[1:]
    asyncio.run(work(address) if role == "work" else stop(address, int(rest[0])))
