"""OpenAI Agents' RedisSession: WATCH, checks, then a transaction of RPUSH, metadata and expiry. It never trims."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from agents.extensions.memory import RedisSession
from redis.asyncio import Redis

from bench.peers.python.saving import TEXT, TTL, Save, main


@contextlib.asynccontextmanager
async def sessions(addr: str, names: list[str]) -> AsyncIterator[Save]:
    async with Redis.from_url(f"redis://{addr}") as client:
        known = {name: RedisSession(name, redis_client=client, ttl=TTL) for name in names}

        async def save(name: str) -> None:
            await known[name].add_items([{"role": "user", "content": TEXT}])

        yield save


if __name__ == "__main__":
    main(sessions)
