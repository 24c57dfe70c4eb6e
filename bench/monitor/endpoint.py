"""A webhook receiver that costs next to nothing (protocol: bench/fleet.py, with reports of its own).

python -m bench.monitor.endpoint COUNT …

It accepts everything, over connections that stay open. After "ready" it prints its port, then a report for each COUNT:
when it has accepted so many more changes. Bodies are looked at only then: each subscriber must have got the changes
with the numbers 0, 1, 2, … (`seats` of the state), each once and in order.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..stats import percentile

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CHANGE = b'"observed_at":'  # once in each change of a body, and in no state of the bench

Accepted = tuple[int, bytes]


class Inbox:
    """What was accepted since the last report, with its times."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = list(counts)
        self._accepted: list[Accepted] = []
        self._changes = 0
        self.connections = 0

    def add(self, body: bytes) -> None:
        self._accepted.append((time.monotonic_ns(), body))
        self._changes += body.count(CHANGE)
        if self._counts and self._changes >= self._counts[0]:
            print(json.dumps(self._report() | {"connections": self.connections}), flush=True)
            self._counts.pop(0)
            self._accepted.clear()
            self._changes = 0

    def _report(self) -> dict[str, Any]:
        numbers: dict[str, list[int]] = {}
        delays: list[int] = []
        for at, body in self._accepted:
            message = json.loads(body)
            states = [change["after"] for change in message["changes"]]
            numbers.setdefault(message["subscriber"], []).extend(state["seats"] for state in states)
            delays += [at - state["sent"] for state in states if state.get("sent")]
        wrong = sum(seen != list(range(len(seen))) for seen in numbers.values())
        figures = {f"p{percent}": percentile(delays, percent) / 1e6 for percent in (50, 99)} if delays else {}
        return figures | {
            "messages": len(self._accepted), "changes": self._changes, "subscribers": len(numbers), "wrong": wrong,
            "last": self._accepted[-1][0],
        }  # fmt: skip


class Connection(asyncio.Protocol):
    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._inbox.connections += 1

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (head := self._data.find(b"\r\n\r\n") + 4) > 3:
            fields = self._data[:head].lower()
            at = fields.index(b"content-length:") + 15
            end = head + int(fields[at : fields.index(b"\r\n", at)])
            if len(self._data) < end:
                return
            body, self._data = self._data[head:end], self._data[end:]
            self._transport.write(OK)
            self._inbox.add(body)


async def run(counts: Sequence[int]) -> None:
    inbox = Inbox(counts)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(inbox), "127.0.0.1", 0)
    print("ready", flush=True)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    server.close()


if __name__ == "__main__":
    asyncio.run(run([int(count) for count in sys.argv[1:]]))
