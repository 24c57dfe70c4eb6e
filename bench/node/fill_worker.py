"""Gives the dashboard something to show (protocol: bench/fleet.py, report of its own).

python -m bench.node.fill_worker ADDR USERS

So many users with one message; the first hundred and every hundredth have twenty. 50 locks held, 200 runs that wait and
100 actions in the audit log, whatever the number of users. Nobody stays: afterwards only the node talks to the server.
"""

from __future__ import annotations

import asyncio
import json
import sys

from holdfast import Holdfast

from ..buffers.append_worker import DATA
from ..buffers.growth_worker import spread
from ..locks.worker import wait_for_go

BUFFER, RUNS = "inbox", "agent"
LARGE, MORE = 100, 20
"""So many users, and one in so many, have more messages, so many: a page of the largest is always full."""
LOCKS, RUNNING, ACTIONS = 50, 200, 100
LEASE = 3600.0


async def run(addr: str, users: int) -> None:
    async with Holdfast(f"redis://{addr}") as hf:
        inbox, agent = hf.buffer(BUFFER), hf.runs(RUNS)
        await hf.ping()
        wait_for_go()

        async def fill(number: int) -> None:
            if number < LARGE or number % LARGE == 0:
                await inbox.extend(f"user-{number}", [DATA] * MORE)
            else:
                await inbox.append(f"user-{number}", DATA)

        took = await spread(fill, range(users))
        await spread(lambda number: hf.lock(f"lock-{number}", ttl=LEASE, renew=False).ticket(wait=0), range(LOCKS))
        await spread(lambda number: agent.start(f"user-{number}", input={"prompt": "hello"}), range(RUNNING))
        await spread(lambda number: hf.fleet.record("stop", f"run-{number}", "bench", by="bench"), range(ACTIONS))
        known = (await inbox.totals()).users
        if known != users:
            raise SystemExit(f"{users} users were given messages, but the buffer knows {known}")
    print(json.dumps({"filled_per_s": users / took}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
