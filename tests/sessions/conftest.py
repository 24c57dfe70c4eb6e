"""Sessions on every kind of server and both twins: `chat` speaks to one client, `crew` makes more of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.actors import AsyncActor, Fleet, ThreadActor
from support.backends import Backend


class Chat:
    """The methods of a Sessions, run by an actor: the same test code for both twins."""

    def __init__(self, actor: AsyncActor | ThreadActor, name: Any = "chat", **options: Any) -> None:
        self.actor = actor
        self.sessions = actor.hf.sessions(name, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.sessions, name)
        return lambda *args, **options: self.actor.do(lambda _: method(*args, **options))

    async def contents(self, session: Any, limit: int = 10_000) -> list[Any]:
        return [entry.content for entry in await self.context(session, limit)]


class Crew(Fleet):
    """Clients and their chats. `server` is what they speak to."""

    def __init__(self, backend: Backend, api: str) -> None:
        super().__init__(backend.url, api)
        self.backend = backend

    async def chat(self, name: Any = "chat", *, settings: dict[str, Any] | None = None, **options: Any) -> Chat:
        """On a client of its own: another process, as far as the server can tell."""
        return self.chat_on(await self.actor(**(settings or {})), name, **options)

    def chat_on(self, actor: AsyncActor | ThreadActor, name: Any = "chat", **options: Any) -> Chat:
        return Chat(actor, name, **options)

    def lives(self) -> dict[str, int]:
        """Remaining ms of every key."""
        return self.backend.keys()


@pytest.fixture
async def crew(backend: Backend, api: str) -> AsyncIterator[Crew]:
    async for made in closing(Crew(backend, api), backend):
        yield made


@pytest.fixture
async def quick(valkey: Backend, api: str) -> AsyncIterator[Crew]:
    """One server, for what does not depend on the kind."""
    async for made in closing(Crew(valkey, api), valkey):
        yield made


async def closing(crew: Crew, backend: Backend) -> AsyncIterator[Crew]:
    """Closing must leave no thread and no task; and, as everywhere, no key without an end."""
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    yield crew
    await crew.close()
    left = [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith("asyncio_")]
    assert not left, f"threads left behind: {left}"
    lost = [t for t in asyncio.all_tasks() if t not in tasks and t is not asyncio.current_task()]
    assert not lost, f"tasks left behind: {lost}"
    eternal = [key for key, life in backend.keys().items() if life == -1]
    assert not eternal, f"keys without an end: {eternal}"
    backend.flush()
