"""Memory: the store for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from holdfast.keys import Id
from holdfast.memory.absorb import absorb, fences_of
from holdfast.memory.agents import Agent
from holdfast.memory.batch import AbsorbableBatch, user_column
from holdfast.memory.entry import Entry, Forgotten
from holdfast.memory.store import DEFAULT_URL, Store


class Memory:
    """Long-term memory: the sink of absorption.

        async with Memory("sqlite:///memory.db") as memory:
            await memory.absorb(batch)

    `url` is a file of SQLite, a PostgreSQL, or a blocking SQLAlchemy engine. `agents` turn batches into entries, by
    default word for word. `forget_also` are the things whose `forget(user)` is called by `forget`: name the buffers
    that feed this memory. `prefix` begins the names of all tables. The database is worked with in threads; `store` is
    the blocking one underneath.
    """

    def __init__(
        self, url: str | sa.URL | sa.Engine = DEFAULT_URL, *, agents: Iterable[Agent] | None = None,
        forget_also: Iterable[Any] = (), prefix: str = "holdfast_memory",
    ) -> None:  # fmt: skip
        self.store = Store(url, agents=agents, forget_also=forget_also, prefix=prefix)

    def __repr__(self) -> str:
        return repr(self.store).replace("<Store", "<Memory", 1)

    async def open(self) -> Self:
        """Connect and bring the tables up to date. Refuses a database that is newer than this code."""
        await asyncio.to_thread(self.store.open)
        return self

    async def close(self) -> None:
        """Close the connections, unless the engine was passed in."""
        await asyncio.to_thread(self.store.close)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def absorb(self, batch: AbsorbableBatch) -> None:
        """Run the agents that are not done with this batch and store what each finds: once, however often it is called.

        Agents run side by side, and each is committed as it finishes, after a look at the lease. Raises the first
        failure, with the others as notes: what the other agents found is stored then, and the next delivery runs only
        the unfinished ones. Fenced or LeaseLost: a newer worker has the batch, and nothing more is stored. Cancelled,
        it cancels the agents and stores nothing more; a commit that is under way is rolled back or ends first."""
        await absorb(self.store, batch, self.store.agents)

    async def recall(self, user: Id, query: str = "", limit: int = 10, kind: str | None = None) -> list[Entry]:
        """Entries of this user in which a word of the query occurs, the best first; without a query the newest.

        Nothing in the query is an operator. A script without spaces is found by any two neighbouring characters."""
        return await asyncio.to_thread(self.store.recall, user, query, limit, kind)

    async def export(self, user: Id) -> dict[str, Any]:
        """All that is kept of this user, as a JSON value, oldest first. Bytes in data are {"$bytes": base64}."""
        return await asyncio.to_thread(self.store.export, user)

    async def forget(self, user: Id) -> Forgotten:
        """Remove all that is kept of this user, here and in `forget_also`, and refuse workers that still carry it.

        `forget_also` comes first; if one of them fails nothing is removed here: call it again. What arrives while it
        runs may be forgotten too. Cancelled, it may be done in part: call it again."""
        user_column(user)  # before anything is forgotten elsewhere
        return await asyncio.to_thread(self.store.erase, user, await fences_of(self.store.forget_also, user))
