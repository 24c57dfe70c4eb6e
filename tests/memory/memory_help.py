"""Batches, agents and buffers that tests make up; and stores from which one safeguard was taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from holdfast.errors import LeaseLost
from holdfast.memory import NewEntry, Store
from holdfast.memory.database import Database


@dataclass(frozen=True)
class Message:
    id: str
    data: Any
    at: float = 1000.0
    attachments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    user: Any
    assistant: Any
    at: float = 1000.0


@dataclass
class Batch:
    messages: Sequence[Message] = ()
    key: str | bytes = "user-7"
    id: str = "batch-1"
    fence: int = 1
    attempt: int = 1
    buffer: str = "messages"
    pairs: Sequence[Pair] = ()
    lost: bool = False

    def check(self) -> None:
        if self.lost:
            raise LeaseLost("stop: the lease has ended", reason="expired")


def said(*texts: Any, at: float = 1000.0, **fields: Any) -> Batch:
    """A batch of messages with these data. Messages of different batches have different ids."""
    stem = f"{fields['id']}." if "id" in fields else ""
    return Batch([Message(f"{stem}m{n}", text, at + n) for n, text in enumerate(texts)], **fields)


class Says:
    """An agent that answers one entry, when it may."""

    def __init__(self, name: str, content: str | None = None, kind: str = "semantic") -> None:
        self.name, self.content, self.kind = name, content or name, kind
        self.runs = 0
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()
        self.fails: BaseException | None = None
        self.cancelled = 0

    async def run(self, batch: Any) -> list[NewEntry]:
        self.runs += 1
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails is not None:
            raise self.fails
        return [NewEntry(self.kind, self.content)]


class Buffer:
    """A buffer as far as forgetting goes."""

    def __init__(self, name: str, fence: Any = 100, when: Callable[[], None] = lambda: None) -> None:
        self.name, self.fence, self.when = name, fence, when
        self.forgot: list[Any] = []

    async def forget(self, user: Any) -> Any:
        self.forgot.append(user)
        self.when()
        return self.fence


class WithoutFence(Store):
    """The check of the fence is gone."""

    def _check_fence(self, connection: Any, origin: Any) -> None:
        pass


def drop_unique_key(url: str) -> None:
    """The database no longer knows that a batch counts once."""
    execute(url, "DROP INDEX holdfast_memory_checkpoints_once")


def execute(url: str, *statements: str) -> None:
    database = Database(url)
    with database.write("test") as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    database.close()


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    database = Database(url)
    with database.read("test") as connection:
        found = [tuple(row) for row in connection.exec_driver_sql(statement)]
    database.close()
    return found


def everything(url: str) -> str:
    """Every row of every table, as text."""
    database = Database(url)
    with database.read("test") as connection:
        names = sa.inspect(connection).get_table_names()
        assert names
        found = "\n".join(
            f"{name}: {tuple(row)!r}" for name in names for row in connection.exec_driver_sql(f'SELECT * FROM "{name}"')
        )
    database.close()
    return found


def contents(store: Store, user: str | bytes = "user-7") -> list[str]:
    return [entry["content"] for entry in store.export(user)["entries"]]
