"""Holdfast's part of `save`, run like the other contestants' (see bench/peers/python/saving.py)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from bench.peers.python.saving import ENTRIES, TEXT, TTL, Save, main
from holdfast import Holdfast
from holdfast.sessions.entry import Draft


@contextlib.asynccontextmanager
async def sessions(addr: str, names: list[str]) -> AsyncIterator[Save]:
    async with Holdfast(f"redis://{addr}") as hf:
        chat = hf.sessions("save", max_entries=ENTRIES, ttl=TTL)
        full = [Draft(TEXT)] * ENTRIES  # each session has been in use, so that every save trims
        await asyncio.gather(*(chat.save_many(name, full) for name in names))

        async def save(name: str) -> object:
            return await chat.save(name, TEXT)

        yield save


if __name__ == "__main__":
    main(sessions)
