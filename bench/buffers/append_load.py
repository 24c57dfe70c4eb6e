"""What the server can do with the append script when the client costs next to nothing.

python -m bench.buffers.append_load ADDR SECONDS

As in `append_worker`, 48 messages go to each user, so that one request in 48 takes the long way of a new user.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

from ..pipelined import CONNECTIONS, PIPELINE, drive
from .append_worker import BUFFER, CAPACITY, PER_USER, TEXT, TTL

OP = b"\x00\xffHFop\xff\x00"  # stands for the operation id in a packed request; eight bytes that occur nowhere else


class Requests:
    """The one place that knows the arguments of the script. Keys, bounds and payload come from the library itself."""

    def __init__(self) -> None:
        from holdfast.buffers.spec import BufferSpec
        from holdfast.engine.core import Core
        from holdfast.engine.payload import encode

        core = Core("redis://127.0.0.1:1", observers=(), overrides={})  # names things; it is never connected
        self._spec = BufferSpec(
            core, BUFFER, capacity=CAPACITY, ttl=TTL, max_bytes=core.settings.max_buffer_bytes,
            max_message=core.settings.max_message_bytes, conversations=1, conversation_ttl=1.0,
        )  # fmt: skip
        self.script = core.scripts.get("buffers/append")
        self._body = b"\x00" + encode(json.loads(TEXT), core.settings.max_message_bytes)

    def arguments(self, user: str) -> tuple[Any, ...]:
        """The key, then all arguments after the operation id."""
        place = self._spec.place(user)
        return (place.key, place.user, self._spec.limits_of_one, self._body)

    def pack(self, user: str) -> bytes:
        key, *rest = self.arguments(user)
        return self.script.pack((key,), (OP, *rest))


def blocks(requests: Requests, connection: int) -> Iterator[bytes]:
    """Writes of PIPELINE requests for one user at a time, without end."""
    for number in itertools.count():
        packed = requests.pack(f"raw:{connection}:{number}")
        for start in range(0, PER_USER, PIPELINE):
            yield b"".join(
                packed.replace(OP, (start + i).to_bytes(4, "big") + number.to_bytes(4, "big"), 1)
                for i in range(PIPELINE)
            )


def load(addr: str, seconds: float) -> dict[str, object]:
    requests = Requests()
    writes = [blocks(requests, number) for number in range(CONNECTIONS)]
    words, took = drive(addr, seconds, [requests.script.pack_load()], writes)
    if words.keys() != {"stored"}:
        raise SystemExit(f"expected every message to be stored, got {dict(words)}")
    return {"done": words["stored"], "took": took}


if __name__ == "__main__":
    print(json.dumps(load(sys.argv[1], float(sys.argv[2]))))
