"""Makes a monitor know many keys, and measures what one more observation costs (protocol: bench/fleet.py, own report).

python -m bench.monitor.observe_worker ADDR KEYS OBSERVATIONS

The log is read between two samples, by the same step as a worker's. So changes make room for themselves when it is
full, and none is refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from array import array
from collections.abc import Iterator
from typing import Any

from redis.asyncio import Redis

from holdfast import Holdfast
from holdfast.monitor import flows
from holdfast.monitor.flows import Observed, Page
from holdfast.monitor.monitor import Monitor

from ..buffers.growth_worker import Costs, used_memory
from ..locks.worker import wait_for_go
from ..once.gate_worker import state

MONITOR, SOURCE = "observe", "bench"
BACKLOG = 10_000
BATCH = 100
CALLERS = 4
SHARES = {"10": 10, "1": 100, "0": 0}
"""One in so many is changed; 0: none."""
SAMPLES = 3
CONTROL = 10_000

Batch = tuple[list[tuple[str, str, Any]], list[str]]


class Reader:
    """Reads the log for the monitor without looking at it: nobody subscribes."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._begin = b""
        self._version = 0
        self._newest = 0
        self.unread = 0
        self._one_at_a_time = asyncio.Lock()

    def _run(self, flow: Any) -> Any:
        return self._monitor._driver().run(flow)

    def seen(self, answers: list[Observed]) -> None:
        found = [int(answer.change) for answer in answers if answer.change]
        self._newest = max(self._newest, *found) if found else self._newest
        self.unread += len(found)

    async def read(self) -> None:
        core, spec = self._monitor._core, self._monitor._spec
        async with self._one_at_a_time:
            if not self.unread:
                return
            self.unread, end = 0, b"%d" % self._newest
            if not self._begin:
                page = await self._run(flows.peek(core, spec, "deliver", core.client_id, 1, 15.0, False))
                self._begin, self._version = page.begin, page.version
            page = Page(0.0, self._version, self._begin, [], 0, end)
            if not await self._run(flows.pump(core, spec, "deliver", core.client_id, page, ())):
                raise SystemExit("adjust Reader to the monitor's scripts: the log was not read on")
            self._begin = end


class Venues:
    """The keys, what each is like now, and so what must come out of an observation."""

    def __init__(self, keys: int) -> None:
        self._versions = array("I", bytes(4 * keys))
        self._random = random.Random(keys)
        self.keys = keys

    def batches(self, caller: int, count: int, one_in: int) -> list[Batch]:
        """Batches of keys at random out of the caller's own; one in so many is changed, at a random place."""
        mine = range(caller, self.keys, CALLERS)
        made = []
        number = self._random.randrange(one_in) if one_in else 0
        for _ in range(count):
            observations, expected = [], []
            for key in self._random.sample(mine, BATCH):
                number += 1
                changed = bool(one_in) and number % one_in == 0
                self._versions[key] += changed
                observations.append((SOURCE, f"venue-{key}", state(key, self._versions[key])))
                expected.append("changed" if changed else "unchanged")
            made.append((observations, expected))
        return made

    def all(self) -> Iterator[Batch]:
        """Each of them once, another than before if it was known."""
        for start in range(0, self.keys, BATCH):
            several = range(start, min(start + BATCH, self.keys))
            expected = ["changed" if self._versions[key] else "first" for key in several]
            for key in several:
                self._versions[key] += 1
            yield [(SOURCE, f"venue-{key}", state(key, self._versions[key])) for key in several], expected


async def observe(monitor: Monitor, reader: Reader, batches: Iterator[Batch], *, read: bool = False) -> int:
    """One caller. Answers how many observations did not come out as they must."""
    wrong = 0
    for observations, expected in batches:
        answers = await monitor.observe_many(observations)
        wrong += sum(answer.outcome != word for answer, word in zip(answers, expected, strict=True))
        reader.seen(answers)  # type: ignore[arg-type]
        if read and reader.unread > BACKLOG // 4:
            await reader.read()
    return wrong


async def everybody(monitor: Monitor, reader: Reader, batches: list[Iterator[Batch]], *, read: bool = False) -> float:
    started = time.monotonic()
    wrong = sum(await asyncio.gather(*(observe(monitor, reader, each, read=read) for each in batches)))
    took = time.monotonic() - started
    if wrong:
        raise SystemExit(f"{wrong} observations did not come out as they must")
    return took


async def load(monitor: Monitor, reader: Reader, venues: Venues) -> float:
    """Make all keys known. Answers the seconds. The log is emptied of what was read whenever it is full."""
    once = venues.all()
    return await everybody(monitor, reader, [once] * CALLERS, read=True)


async def control(server: Redis, monitor: Monitor, keys: int) -> Costs:
    """GET of the same keys: what grows here as well is the server and the processor's caches, not ours."""
    costs, spread = Costs(server, "get"), random.Random(keys)
    for _ in range(SAMPLES):
        places = [monitor._spec.place(SOURCE, f"venue-{spread.randrange(keys)}") for _ in range(CONTROL)]

        async def get(places: list[str] = places) -> float:
            started = time.monotonic()
            for at in range(0, CONTROL, BATCH):
                async with server.pipeline(transaction=False) as pipe:
                    for place in places[at : at + BATCH]:
                        pipe.get(place)
                    if None in await pipe.execute():
                        raise SystemExit("a key that was observed is not there")
            return time.monotonic() - started

        await costs.add(CONTROL, get())
    return costs


async def run(addr: str, keys: int, observations: int) -> None:
    url = f"redis://{addr}"
    async with Redis.from_url(url) as server, Holdfast(url) as hf:
        monitor = hf.monitor(MONITOR, backlog=BACKLOG)
        reader, venues = Reader(monitor), Venues(keys)
        await server.ping()
        wait_for_go()
        before = await used_memory(server)
        loading = await load(monitor, reader, venues)
        await reader.read()
        log = await server.memory_usage(monitor._spec.key("log"), samples=0) or 0
        figures = {
            "keys": float(keys),
            "loaded": keys / loading,
            "bytes": (await used_memory(server) - before - log) / keys,
            "log_bytes": log / BACKLOG,
        }
        costs = {share: Costs(server) for share in SHARES}
        for number in range(SAMPLES + 1):
            for share, one_in in SHARES.items():
                count = observations // CALLERS // BATCH
                batches = [iter(venues.batches(caller, count, one_in)) for caller in range(CALLERS)]
                running = everybody(monitor, reader, batches)
                if number:
                    await costs[share].add(count * CALLERS * BATCH, running)
                else:
                    await running  # a warm-up
                await reader.read()
        for share, cost in costs.items():
            figures |= {
                f"rate_{share}": cost.ops / cost.seconds,
                f"us_{share}": cost.usec / cost.ops,
                f"cpu_{share}": cost.cpu / cost.ops * 1e6,
            }
        figures["get_us"] = (got := await control(server, monitor, keys)).usec / got.ops
        figures["get_cpu"] = got.cpu / got.ops * 1e6
        print(json.dumps(figures), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
