"""A worker process of the lock benchmarks (protocol: bench/fleet.py).

python -m bench.locks.worker LIB ADDR NAME SECONDS HOLD_MS [--callers N] [--names]

`--callers` runs several callers in one asyncio process: each with a client of its own, as if they were as many
processes, or with `--names` all on one client and each on a name of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time

from . import libs

Rows = list[tuple[int, int, int, int]]

WARM_UP = 0.2
# The last part of a hold is spun: sleeps end late, by different amounts in a thread and in an event loop,
# and with 5 ms holds that would be measured as the lock's doing.
SPIN = 0.001


def hold(since: int, seconds: float) -> None:
    if seconds > SPIN:
        time.sleep(seconds - SPIN)
    _spin(since, seconds)


async def hold_async(since: int, seconds: float) -> None:
    if seconds > SPIN:
        await asyncio.sleep(seconds - SPIN)
    _spin(since, seconds)


def _spin(since: int, seconds: float) -> None:
    until = since + int(seconds * 1e9)
    while time.monotonic_ns() < until:
        pass


def call(acquire: libs.Acquire, name: str, seconds: float, held: float) -> Rows:
    clock, rows = time.monotonic_ns, []
    deadline = clock() + int(seconds * 1e9)
    while (start := clock()) < deadline:
        release = acquire(name)
        granted = clock()
        if held:
            hold(granted, held)
        ending = clock()
        release()
        rows.append((start, granted, ending, clock()))
    return rows


async def call_async(acquire: libs.AsyncAcquire, name: str, seconds: float, held: float) -> Rows:
    clock, rows = time.monotonic_ns, []
    deadline = clock() + int(seconds * 1e9)
    while (start := clock()) < deadline:
        release = await acquire(name)
        granted = clock()
        if held:
            await hold_async(granted, held)
        ending = clock()
        await release()
        rows.append((start, granted, ending, clock()))
    return rows


def wait_for_go() -> None:
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit(0)


def report(rows: Rows) -> None:
    """Hand in the rows, and stay connected until the bench has looked at the server."""
    print(json.dumps({"rows": rows}), flush=True)
    sys.stdin.readline()


def run(options: argparse.Namespace) -> None:
    with libs.SYNC[options.lib](options.addr) as acquire:
        call(acquire, f"warm-up:{os.getpid()}", WARM_UP, 0)
        wait_for_go()
        report(call(acquire, options.name, options.seconds, options.hold_ms / 1000))


async def run_async(options: argparse.Namespace) -> None:
    opener, callers = libs.ASYNC[options.lib], range(options.callers)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(opener(options.addr)) for _ in callers if not options.names]
        if options.names:
            clients = [await stack.enter_async_context(opener(options.addr))] * options.callers
        names = [f"{options.name}:{i}" if options.names else options.name for i in callers]
        warming = [f"warm-up:{os.getpid()}:{i}" for i in callers]
        await asyncio.gather(*(call_async(clients[i], warming[i], WARM_UP, 0) for i in callers))
        wait_for_go()
        held = options.hold_ms / 1000
        done = await asyncio.gather(*(call_async(clients[i], names[i], options.seconds, held) for i in callers))
        report([row for rows in done for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lib", choices=[*libs.ASYNC, *libs.SYNC])
    parser.add_argument("addr")
    parser.add_argument("name")
    parser.add_argument("seconds", type=float)
    parser.add_argument("hold_ms", type=float)
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--names", action="store_true")
    options = parser.parse_args()
    if options.lib in libs.ASYNC:
        asyncio.run(run_async(options))
    elif options.callers > 1 or options.names:
        parser.error(f"{options.lib} is blocking: one caller per process")
    else:
        run(options)


if __name__ == "__main__":
    main()
