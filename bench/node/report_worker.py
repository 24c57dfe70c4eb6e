"""The process that takes locks and appends, and reports to the fleet or not (protocol: bench/peers/python/calling.py).

python -m bench.node.report_worker REPORT ADDR SECONDS PHASE …

Phases: `lock`, acquire and release a name of the caller's own; `append`, one message more for a user of its own, in a
buffer so large that nothing is dropped.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Mapping

from holdfast import Holdfast

from ..buffers.append_worker import DATA
from ..peers.python.calling import Call, main

CAPACITY = 100_000


@contextlib.asynccontextmanager
async def opened(report: float, addr: str) -> AsyncIterator[Mapping[str, Call]]:
    """A call answers 1 if it was right."""
    async with Holdfast(f"redis://{addr}", report=report) as hf:
        inbox = hf.buffer("report", capacity=CAPACITY)

        async def lock(who: str, number: int) -> int:
            lease = await hf.lock(f"lock-{who}").acquire()
            await lease.release()  # raises if it was lost
            return 1

        async def append(who: str, number: int) -> int:
            return (await inbox.append(f"user-{who}", DATA)).length == number + 1

        yield {"lock": lock, "append": append}


if __name__ == "__main__":
    main(functools.partial(opened, float(sys.argv[1])), sys.argv[2:])
