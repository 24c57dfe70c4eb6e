"""`python -m bench.decisions`: the measurements that docs/decisions name, each a few seconds long.

What a script costs the server, from INFO commandstats on pipelined loads; and what writing early gains, the two ways
taking turns in one process.
"""

from __future__ import annotations

import asyncio
import statistics
import time

import redis

from holdfast import Holdfast
from holdfast.engine import mux
from holdfast.engine.core import Core
from holdfast.engine.embedded import EmbeddedServer
from holdfast.locks.spec import place

LOCKS = 10_000
ROUNDS = 5
CALLERS, TIMES = 100, 50


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


def main() -> None:
    embedded = EmbeddedServer.open("embedded:")
    try:
        url = f"unix://{embedded.socket_path}"
        server = redis.Redis(unix_socket_path=embedded.socket_path)
        core = Core(url, observers=(), overrides={})
        rounds = [script_costs(core, server) for _ in range(ROUNDS)]
        server.close()
        for name in rounds[0]:
            figures = [costs[name] for costs in rounds]
            print(f"{name}: {statistics.median(figures):.1f} µs of server time ({min(figures)} .. {max(figures)})")
        for way, figures in asyncio.run(early_write(url)).items():
            low, high = min(figures), max(figures)
            print(f"write {way}: {statistics.median(figures):,.0f} pairs/s ({low:,.0f} .. {high:,.0f})")
    finally:
        embedded.close()


if __name__ == "__main__":
    main()
