"""`python -m bench.decisions [locks] [runs]`: the measurements that docs/decisions name, each a few seconds long.

What a script costs the server, from INFO commandstats on pipelined loads; what writing early gains, the two ways
taking turns in one process; what a run and its events cost the server, beside streams with a reader on each connection.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from typing import Any, NamedTuple

import redis
import redis.asyncio

from holdfast import Holdfast
from holdfast.engine import mux
from holdfast.engine.core import Core
from holdfast.engine.embedded import EmbeddedServer
from holdfast.locks.spec import place

LOCKS = 10_000
ROUNDS = 5
CALLERS, TIMES = 100, 50
RUNS, STORED = 2_000, 50_000
READERS, EVENTS, PACE = 20, 600, 0.005
WORD = {"text": "forty bytes of a sentence, more or less "}


def script_costs(core: Core, server: redis.Redis) -> dict[str, float]:
    """Server µs per call of acquire and release, on locks that nobody else wants."""
    at = [place(core, "lock", f"n{number}") for number in range(LOCKS)]
    tokens = [core.new_token() for _ in at]
    loads = {
        "locks/acquire": [
            (t, 1, 1, 30_000, 3_000, "f", core.owner, p.channels) for t, p in zip(tokens, at, strict=True)
        ],
        "locks/release": [(t, p.channels) for t, p in zip(tokens, at, strict=True)],
    }
    costs = {}
    for name, arguments in loads.items():
        sha = server.script_load(core.scripts.get(name).source)
        server.config_resetstat()
        for start in range(0, LOCKS, 100):
            with server.pipeline(transaction=False) as pipe:
                for here, words in zip(at[start : start + 100], arguments[start : start + 100], strict=True):
                    pipe.evalsha(sha, len(here.keys), *here.keys, *words)
                pipe.execute()
        costs[name] = server.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
    return costs


async def pairs_per_second(hf: Holdfast) -> float:
    async def caller(number: int) -> None:
        for _ in range(TIMES):
            await (await hf.lock(f"c{number}").acquire()).release()

    started = time.perf_counter()
    await asyncio.gather(*map(caller, range(CALLERS)))
    return CALLERS * TIMES / (time.perf_counter() - started)


async def early_write(url: str) -> dict[str, list[float]]:
    ways = {"after 16 unsent": mux.EARLY, "at the end of the turn": 1_000_000}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    async with Holdfast(url) as hf:
        await pairs_per_second(hf)
        for _ in range(ROUNDS):
            for way, limit in ways.items():
                mux.EARLY = limit
                rates[way].append(await pairs_per_second(hf))
    mux.EARLY = ways["after 16 unsent"]
    return rates


class Used(NamedTuple):
    """What the server has used so far."""

    cpu: float
    sent: int
    commands: int
    memory: int

    @classmethod
    def by(cls, server: Any) -> Used:
        info = server.info()
        cpu = info["used_cpu_user"] + info["used_cpu_sys"]
        memory = info["used_memory"] - info["mem_clients_normal"]
        return cls(cpu, info["total_net_output_bytes"], info["total_commands_processed"], memory)

    def since(self, start: Used, count: int) -> str:
        cpu, sent, commands, _ = (now - before for now, before in zip(self, start, strict=True))
        return (
            f"{cpu / count * 1e6:.0f} µs of server CPU, {commands / count:.1f} commands, {sent / count:.0f} bytes sent"
        )


async def run_costs(url: str, server: Any) -> None:
    """A run from start to end, by a runner that returns at once; with few and with many ended runs beside it."""
    async with Holdfast(url) as hf:
        agent = hf.runs("agent")
        done, numbers = asyncio.Event(), itertools.count()
        left = 0

        @hf.runner(agent, concurrency=100)
        async def nothing(run: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        async def lives(count: int) -> float:
            nonlocal left
            left = count
            done.clear()
            started = time.perf_counter()
            names = [next(numbers) for _ in range(count)]
            for at in range(0, count, 100):
                await asyncio.gather(*(agent.start(f"r{n}", key=f"k{n}") for n in names[at : at + 100]))
            await done.wait()
            while await agent.count(state="completed") < names[-1] + 1:
                await asyncio.sleep(0.01)
            return count / (time.perf_counter() - started)

        working = asyncio.create_task(hf.work())
        await lives(RUNS)
        for more in (0, STORED - 2 * RUNS):
            if more:
                await lives(more)
            stored, start = await agent.count(), Used.by(server)
            rate = await lives(RUNS)
            cost = Used.by(server).since(start, RUNS)
            print(f"a run beside {stored} ended ones: {cost}; {rate:,.0f} runs/s from one process")
        print(f"an ended run without events: {Used.by(server).memory / await agent.count():.0f} bytes of memory")
        hf.stop_work()
        await working


async def pushed(url: str, server: Any) -> tuple[str, int, int]:
    """Events of a run and readers of it, as they are: cost, connections, bytes that one event takes to store."""
    async with Holdfast(url) as writer, Holdfast(url) as web:
        seen = 0

        async def read() -> None:
            nonlocal seen
            async for _ in web.runs("agent").events("run-1"):
                seen += 1

        async with await writer.runs("agent").claim("run-1") as run:
            await run.emit(WORD)
            readers = [asyncio.create_task(read()) for _ in range(READERS)]
            while seen < READERS:
                await asyncio.sleep(0.01)
            start, connected = Used.by(server), server.info("clients")["connected_clients"]
            for _ in range(EVENTS):
                await run.emit(WORD)
                await asyncio.sleep(PACE)
            await run.flush()
            cost = Used.by(server)
            stored = server.memory_usage("hf:{runs.agent}:e:run-1", samples=0)
        await asyncio.gather(*readers)
    assert seen == READERS * (EVENTS + 2)
    return cost.since(start, EVENTS), connected - 1, round(stored / EVENTS)


async def one_by_one(socket: str, server: Any) -> tuple[str, int, int]:
    """The same with an XADD for each event and an XREAD BLOCK for each reader, of redis-py."""
    writer = redis.asyncio.Redis(unix_socket_path=socket)
    web = redis.asyncio.Redis(unix_socket_path=socket)
    payload, seen = b"x" * len(str(WORD)), 0

    async def read() -> None:
        nonlocal seen
        last, mine = b"0-0", 0
        while mine <= EVENTS:
            for _, entries in await web.xread({"one": last}, block=2000):
                last, mine, seen = entries[-1][0], mine + len(entries), seen + len(entries)

    await writer.xadd("one", {"d": payload})
    readers = [asyncio.create_task(read()) for _ in range(READERS)]
    while seen < READERS:
        await asyncio.sleep(0.01)
    start, connected = Used.by(server), server.info("clients")["connected_clients"]
    for _ in range(EVENTS):
        await writer.xadd("one", {"d": payload}, maxlen=10_000)
        await asyncio.sleep(PACE)
    await asyncio.gather(*readers)
    cost, stored = Used.by(server), server.memory_usage("one", samples=0)
    await writer.aclose()
    await web.aclose()
    return cost.since(start, EVENTS), connected - 1, round(stored / EVENTS)


async def events(url: str, socket: str, server: Any) -> None:
    what = f"an event, {READERS} readers in one process, {1 / PACE:.0f} events/s"
    for way, (cost, connections, stored) in {
        "gathered and pushed": await pushed(url, server),
        "XADD, and XREAD BLOCK for each reader": await one_by_one(socket, server),
    }.items():
        print(f"{what}, {way}: {cost}; {connections} connections; {stored} bytes of memory")


def lock_figures(url: str, server: Any) -> None:
    core = Core(url, observers=(), overrides={})
    rounds = [script_costs(core, server) for _ in range(ROUNDS)]
    for name in rounds[0]:
        figures = [costs[name] for costs in rounds]
        print(f"{name}: {statistics.median(figures):.1f} µs of server time ({min(figures)} .. {max(figures)})")
    for way, figures in asyncio.run(early_write(url)).items():
        low, high = min(figures), max(figures)
        print(f"write {way}: {statistics.median(figures):,.0f} pairs/s ({low:,.0f} .. {high:,.0f})")


def main() -> None:
    wanted = sys.argv[1:] or ["locks", "runs"]
    embedded = EmbeddedServer.open("embedded:")
    server = redis.Redis(unix_socket_path=embedded.socket_path)
    try:
        url = f"unix://{embedded.socket_path}"
        if "locks" in wanted:
            lock_figures(url, server)
        if "runs" in wanted:
            asyncio.run(run_costs(url, server))
            asyncio.run(events(url, embedded.socket_path, server))
    finally:
        server.close()
        embedded.close()


if __name__ == "__main__":
    main()
