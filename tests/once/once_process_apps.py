"""Processes of a fleet that does things once, real enough to be killed and paused. Run by `test_once_processes.py`.

python once_process_apps.py herd URL PROCESSES IDS CLAIMS   one line of JSON for each process
python once_process_apps.py claim URL LEASE [sync]          claims `orders`/`a`; says what it is told, one line each
python once_process_apps.py call URL LEASE                  a call that never returns
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any

import holdfast
import holdfast.sync


def say(**fields: Any) -> None:
    print(json.dumps({"at": time.monotonic(), **fields}), flush=True)  # noqa: T201


def herd(url: str, processes: int, ids: int, claims: int) -> None:
    """Forked, as importing costs more than all of the work."""
    children = []
    for number in range(processes):
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            os.close(read)
            with os.fdopen(write, "w") as out:
                json.dump(graze(url, number, ids, claims), out)
            os._exit(0)
        os.close(write)
        children.append((child, read))
    for child, read in children:
        with os.fdopen(read) as pipe:
            print(pipe.read(), flush=True)  # noqa: T201
        os.waitpid(child, 0)


def graze(url: str, number: int, ids: int, claims: int) -> dict[str, Any]:
    """All ids, in an order of its own, in batches and one by one; then claims of some others."""
    order = random.Random(number)
    wanted = list(range(ids))
    order.shuffle(wanted)
    told: list[int] = []
    worked: list[int] = []
    with holdfast.sync.Holdfast(url, retry_for=30) as hf:
        while wanted:
            size = order.choice((1, 10, 500, 1000))
            batch, wanted = wanted[:size], wanted[size:]
            if size == 1:
                told += batch if hf.once("ids", batch[0], 600) else []
            else:
                told += hf.filter_new("ids", batch, 600)
        for one in order.sample(range(claims), claims):
            with hf.claim("claims", one, 600, wait=order.choice((0.0, None))) as claim:
                if claim:
                    worked.append(one)
    return {"told": told, "worked": worked}


async def claim(url: str, lease: float) -> None:
    async with holdfast.Holdfast(url) as hf:
        try:
            async with hf.claim("orders", "a", lease=lease) as claim:
                say(state=claim.state, fence=claim.fence)
                await asyncio.sleep(60)
        except holdfast.LeaseLost as error:
            say(error=type(error).__name__, reason=error.reason)


def claim_plainly(url: str, lease: float) -> None:
    with holdfast.sync.Holdfast(url) as hf:
        claim = hf.claim("orders", "a", lease=lease).begin()
        say(state=claim.state, fence=claim.fence)
        sys.stdin.readline()
        try:
            claim.confirm()
        except holdfast.LeaseLost as error:
            say(error=type(error).__name__, reason=error.reason)
        else:
            say(error="", reason="confirmed")


async def call(url: str, lease: float) -> None:
    async with holdfast.Holdfast(url) as hf:

        @hf.idempotent("{order}", space="charge", lease=lease)
        async def charge(order: str) -> str:
            say(state="called")
            await asyncio.sleep(60)
            return "never"

        await charge("a")


if __name__ == "__main__":
    mode, url, *rest = sys.argv[1:]
    if mode == "herd":
        herd(url, *map(int, rest))
    elif mode == "call":
        asyncio.run(call(url, float(rest[0])))
    elif rest[1:] == ["sync"]:
        claim_plainly(url, float(rest[0]))
    else:
        asyncio.run(claim(url, float(rest[0])))
