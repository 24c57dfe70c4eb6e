"""The processes of `push` (protocol: bench/fleet.py, with reports of their own).

python -m bench.monitor.push_worker work ADDR STORE PORT SUBSCRIBERS MAX_CHANGES
python -m bench.monitor.push_worker observe ADDR COUNT …
python -m bench.monitor.push_worker bare PORT COUNT …

`work` subscribes webhooks and runs `hf.work()`. `observe` makes keys known; then, for each COUNT, it starts at a line
from standard input, changes so many of them, a hundred in a call, and reports. `COUNT@MS` changes one every MS, and the
state says when. `bare` posts such messages of one change without a monitor, one after another over one connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from typing import Any

from holdfast import Change, Delivery, Holdfast, Subscriber
from holdfast.monitor.shapes import as_json

from ..once.gate_worker import state
from ..peers.python.moving import end_with_input

MONITOR, SOURCE = "push", "bench"
KEYS, BATCH = 1_000, 100
WORKERS = 10


def change(phase: int, number: int, sent: int = 0) -> tuple[str, str, dict[str, Any]]:
    key = number % KEYS
    return SOURCE, f"venue-{key}", state(key, number) | {"phase": phase, "sent": sent}


async def work(addr: str, store: str, port: int, subscribers: int, max_changes: int) -> None:
    from holdfast.memory import MonitorStore

    with MonitorStore(store) as kept:
        async with Holdfast(f"redis://{addr}") as hf:
            monitor = hf.monitor(MONITOR, store=kept, allow=["127.0.0.1"], workers=WORKERS)
            for number in range(subscribers):
                name, target = f"subscriber-{number}", f"http://127.0.0.1:{port}/{number}"
                await monitor.subscribe(Subscriber(name, "webhook", target, max_changes=max_changes))
            working = asyncio.create_task(hf.work())
            print("ready", flush=True)
            await working


async def observe(addr: str, phases: list[str]) -> None:
    async with Holdfast(f"redis://{addr}") as hf:
        monitor = hf.monitor(MONITOR)
        await monitor.observe_many([(SOURCE, f"venue-{key}", state(key, -1)) for key in range(KEYS)])
        print("ready", flush=True)
        for at, phase in enumerate(phases):
            count, _, pace = phase.partition("@")
            if not await asyncio.to_thread(sys.stdin.readline):
                return
            started = time.monotonic_ns()
            if pace:
                for number in range(int(count)):
                    await monitor.observe(*change(at, number, time.monotonic_ns()))
                    await asyncio.sleep(float(pace) / 1000)
            else:
                for begin in range(0, int(count), BATCH):
                    several = range(begin, min(begin + BATCH, int(count)))
                    await monitor.observe_many([change(at, number) for number in several])
            print(json.dumps({"started": started, "ended": time.monotonic_ns()}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


def bare(port: int, phases: list[str]) -> None:
    """What the receiver and the machine can do: a socket, ready-made requests, and nothing else."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("ready", flush=True)
        for count in phases:
            requests = [_request(number) for number in range(int(count))]
            if not sys.stdin.readline():
                return
            started = time.monotonic_ns()
            for request in requests:
                connection.sendall(request)
                if not connection.recv(4096).endswith(b"\r\n\r\n"):
                    raise SystemExit("the receiver answered something else")
            print(json.dumps({"started": started, "ended": time.monotonic_ns()}), flush=True)
        sys.stdin.readline()


def _request(number: int) -> bytes:
    source, key, now = change(0, number)
    told = Change("0" * 16, MONITOR, source, key, "changed", state(number % KEYS, -1), now, 0.0, 0.0)
    body = as_json(Delivery("0" * 32, MONITOR, "bare", (told,), 1, 0.0))
    head = ("POST / HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(body)}")
    return "\r\n".join((*head, "", "")).encode() + body


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "work":
        end_with_input()
        asyncio.run(work(rest[0], rest[1], *map(int, rest[2:])))
    elif role == "observe":
        asyncio.run(observe(rest[0], rest[1:]))
    else:
        bare(int(rest[0]), rest[1:])
