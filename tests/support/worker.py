"""A process of a fleet, told what to do line by line. Real enough to be killed and paused.

python worker.py URL [sync]     reads {"op": …} from stdin, answers {"ok": …} or {"error": …} on stdout
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

import holdfast
import holdfast.sync

SETTINGS = json.loads(os.environ.get("WORKER_SETTINGS", "{}"))


def answer(**fields: Any) -> None:
    print(json.dumps({"at": time.monotonic(), **fields}), flush=True)  # noqa: T201


def failed(error: BaseException) -> None:
    answer(error=type(error).__name__, text=str(error), reason=getattr(error, "reason", ""))


async def serve(url: str) -> None:
    loop = asyncio.get_running_loop()
    leases: dict[str, Any] = {}
    bodies: dict[str, asyncio.Task[None]] = {}
    async with holdfast.Holdfast(url, **SETTINGS) as hf:
        answer(ok="ready", pid=os.getpid())
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order = json.loads(line)
            try:
                await obey(hf, order, leases, bodies)
            except Exception as error:
                failed(error)


async def obey(hf: Any, order: dict[str, Any], leases: dict[str, Any], bodies: dict[str, Any]) -> None:
    name = order.get("name", "")
    match order["op"]:
        case "acquire":
            lease = leases[name] = await hf.lock(name, ttl=order.get("ttl", 30)).acquire(wait=order.get("wait"))
            answer(ok="acquired", fence=lease.fence)
        case "release":
            await leases.pop(name).release()
            answer(ok="released")
        case "state":
            lease = leases[name]
            answer(ok="state", lost=lease.lost, reason=lease.lost_reason, remaining=lease.remaining())
        case "write":
            await hf.guarded(name, leases[name], ("SET", hf.guard_key(name, "value"), order["value"], "EX", 60))
            answer(ok="written")
        case "block":
            time.sleep(order["seconds"])  # the event loop stands still; only the keeper's thread runs
            answer(ok="blocked", lost=leases[name].lost)
        case "body":
            bodies[name] = asyncio.get_running_loop().create_task(body(hf, name, order.get("ttl", 30)))
        case "hammer":
            await hammer(hf, order)


async def body(hf: Any, name: str, ttl: float) -> None:
    try:
        async with hf.lock(name, ttl=ttl) as lease:
            answer(ok="entered", fence=lease.fence)
            await asyncio.sleep(3600)
    except holdfast.LeaseLost as error:
        failed(error)


async def hammer(hf: Any, order: dict[str, Any]) -> None:
    """Take and give back one of `names` in turn until the file `end` is there, with each fence written down."""
    grants: list[tuple[str, int]] = []
    errors: dict[str, int] = {}
    number = 0
    while not os.path.exists(order["end"]):
        name = order["names"][number % len(order["names"])]
        number += 1
        try:
            async with hf.lock(name, ttl=order.get("ttl", 5), wait=10) as lease:
                grants.append((name, lease.fence))
                await asyncio.sleep(0)
        except holdfast.HoldfastError as error:
            errors[type(error).__name__] = errors.get(type(error).__name__, 0) + 1
    answer(ok="hammered", grants=grants, errors=errors)


def serve_blocking(url: str) -> None:
    leases: dict[str, Any] = {}
    with holdfast.sync.Holdfast(url, **SETTINGS) as hf:
        answer(ok="ready", pid=os.getpid())
        for line in sys.stdin:
            order = json.loads(line)
            name = order.get("name", "")
            try:
                match order["op"]:
                    case "acquire":
                        lock = hf.lock(name, ttl=order.get("ttl", 30))
                        lease = leases[name] = lock.acquire(wait=order.get("wait"))
                        answer(ok="acquired", fence=lease.fence)
                    case "release":
                        leases.pop(name).release()
                        answer(ok="released")
                    case "state":
                        lease = leases[name]
                        answer(ok="state", lost=lease.lost, reason=lease.lost_reason, remaining=lease.remaining())
                    case "write":
                        hf.guarded(name, leases[name], ("SET", hf.guard_key(name, "value"), order["value"], "EX", 60))
                        answer(ok="written")
                    case "fork":
                        fork(hf, leases, name)
            except Exception as error:
                failed(error)


def fork(hf: Any, leases: dict[str, Any], name: str) -> None:
    """The child uses the same client: its own connections and name, none of the parent's leases."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        report: dict[str, Any] = {}
        try:
            report["busy"] = hf.lock(name).try_acquire() is None
            report["lost"] = leases[name].lost_reason
            with hf.lock(name + ".child", ttl=5) as lease:
                report["own"] = lease.fence
                report["threads"] = threading.active_count()
        except BaseException as error:
            report["error"] = repr(error)
        os.write(write, json.dumps(report).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        report = json.loads(pipe.read())
    os.waitpid(child, 0)
    answer(ok="forked", child=report, mine=leases[name].lost)


if __name__ == "__main__":
    if "sync" in sys.argv[2:]:
        serve_blocking(sys.argv[1])
    else:
        asyncio.run(serve(sys.argv[1]))
