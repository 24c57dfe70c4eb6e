"""LangChain's RedisChatMessageHistory: LPUSH, then EXPIRE, blocking. It never trims.

Its own `aadd_messages` is used, which calls the blocking one in asyncio's default threads. A history makes a client of
its own, so they are made before the clock starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from langchain_community.chat_message_histories import RedisChatMessageHistory
from langchain_core.messages import HumanMessage

from bench.peers.python.saving import TEXT, TTL, Save, main


@contextlib.asynccontextmanager
async def sessions(addr: str, names: list[str]) -> AsyncIterator[Save]:
    known = {name: RedisChatMessageHistory(name, url=f"redis://{addr}", ttl=TTL) for name in names}

    async def save(name: str) -> None:
        await known[name].aadd_messages([HumanMessage(content=TEXT)])

    yield save


if __name__ == "__main__":
    main(sessions)
