"""Finding somebody to take from, for whoever asks over HTTP and names no user."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from holdfast import BatchTicket, Buffer, NotAcquired
from holdfast.node.state import KNOWN, Node

LOOKED_AT = 200
"""Users that are looked for at once: so many who are due, and the oldest; and how many times, if none can be used."""
PAGES = 4
FRESH, PAUSE, AGAIN = 1.0, 0.1, 0.25
"""Seconds for which they may be used, between two looks that find nobody, and between two tries of one who waits."""


class Wanted(Protocol):
    """What is asked for."""

    user: str | None
    limit: int
    lease: float | None
    wait: float


async def take_in_time(node: Node, buffer: Buffer, wanted: Wanted) -> BatchTicket | None:
    """Looks now and then, until there is something or the time is over; many who wait share a look."""
    end = time.monotonic() + min(wanted.wait, node.config.max_wait)
    while True:
        try:
            found = await take(node, buffer, wanted)
        except NotAcquired:  # somebody has this user's batch
            found = None
        pause = min(AGAIN, end - time.monotonic())
        if found is not None or pause <= 0 or node.closing:
            return found
        await asyncio.sleep(pause)


async def take(node: Node, buffer: Buffer, wanted: Wanted) -> BatchTicket | None:
    """What is there now. Raises NotAcquired where somebody has the batch of the user who was named."""
    if wanted.user is not None:
        return await buffer.ticket(wanted.user, wanted.limit, lease=wanted.lease)
    async for user in _anybody(node, buffer):
        try:
            found = await buffer.ticket(user, wanted.limit, lease=wanted.lease)
        except NotAcquired:
            continue
        if found is not None:
            return found
    return None


async def _anybody(node: Node, buffer: Buffer) -> AsyncGenerator[Any, None]:
    """Who is due, a batch that was given back among them; then who waits longest and whom nobody has.

    Looked for once for many who take, as it is a look at every shard: whoever is gone meanwhile costs a request."""
    now = time.monotonic()
    looked, left = node.candidates.get(buffer.name, (float("-inf"), deque()))
    while left and now - looked < FRESH:
        yield left.popleft()
    if buffer.name in node.idle and now - looked < PAUSE:
        return
    found = list(await buffer.due(LOOKED_AT))
    for offset in range(0, PAGES * LOOKED_AT, LOOKED_AT):
        oldest = await buffer.oldest(LOOKED_AT, offset=offset)
        found += [one.user for one in oldest if one.waiting and not one.in_flight]
        if len(oldest) < LOOKED_AT or not all(isinstance(user, bytes) for user in found):
            break
    # An id of bytes has no place in JSON, so nobody could acknowledge that here.
    left = deque(user for user in dict.fromkeys(found) if not isinstance(user, bytes))
    if len(node.candidates) >= KNOWN:
        node.candidates.clear()
        node.idle.clear()
    node.candidates[buffer.name] = (now, left)
    (node.idle.discard if left else node.idle.add)(buffer.name)
    while left:
        yield left.popleft()
