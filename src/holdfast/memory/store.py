"""The store: blocking, with everything that touches SQL. `Memory` is the same for asyncio."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from holdfast.errors import ConfigurationError, Fenced
from holdfast.keys import Id, decode
from holdfast.memory.absorb import absorb, blocking, fences_of
from holdfast.memory.agents import Agent, Verbatim, check_agents
from holdfast.memory.batch import MAX_FENCE, AbsorbableBatch, Origin, name_column, resource_of, user_column
from holdfast.memory.database import Connection, Database
from holdfast.memory.entry import Entry, Forgotten, NewEntry, check_new, storable, to_json
from holdfast.memory.schema import STEPS, Tables, clock, migrate, terms_column
from holdfast.memory.search import check_recall, recall_statement, rows_of

DEFAULT_URL = "sqlite:///holdfast-memory.db"


class Store:
    """Long-term memory for blocking code.

        with Store("sqlite:///memory.db") as store:
            store.absorb(batch)
            store.recall("user-7", "green tea")

    `url` is a file of SQLite, a PostgreSQL, or a blocking SQLAlchemy engine. `agents` turn batches into entries, by
    default word for word. `forget_also` are the things whose `forget(user)` is called by `forget`: name the buffers
    that feed this memory. `prefix` begins the names of all tables. It may be used by many threads at once.
    """

    def __init__(
        self, url: str | sa.URL | sa.Engine = DEFAULT_URL, *, agents: Iterable[Agent] | None = None,
        forget_also: Iterable[Any] = (), prefix: str = "holdfast_memory",
    ) -> None:  # fmt: skip
        self.agents = check_agents((Verbatim(),) if agents is None else agents)
        self.forget_also = tuple(forget_also)
        for thing in self.forget_also:
            if not callable(getattr(thing, "forget", None)):
                raise ConfigurationError(f"pass things that have forget(user) in forget_also, not {thing!r:.80}")
        self._tables = Tables(prefix)
        self._database = Database(url)
        self._opened = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._database.shown} {'open' if self._opened else 'closed'}>"

    # -- life ---------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Connect and bring the tables up to date. Refuses a database that is newer than this code."""
        if not self._opened:
            try:
                self._database.prepare()
                migrate(self._database, self._tables)
            except BaseException:
                self._database.close()
                raise
            self._opened = True
        return self

    def close(self) -> None:
        """Close the connections, unless the engine was passed in."""
        self._opened = False
        self._database.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- absorbing ----------------------------------------------------------------------------------------------

    def absorb(self, batch: AbsorbableBatch) -> None:
        """Run the agents that are not done with this batch and store what each finds: once, however often it is called.

        Raises the first failure, with the others as notes; what other agents found is stored then. Deliver the batch
        again to have the unfinished ones run again. Fenced or LeaseLost: a newer worker has the batch, so stop."""
        blocking(absorb(self, batch, self.agents))

    def done(self, batch: AbsorbableBatch) -> frozenset[str]:
        """The names of the agents that are done with this batch."""
        origin, checkpoints = Origin.of(batch), self._tables.checkpoints
        with self._db.read("done") as connection:
            found = connection.execute(sa.select(checkpoints.c.agent).where(*self._same_batch(origin)))
            return frozenset(found.scalars())

    def commit(
        self, batch: AbsorbableBatch, agent: str, entries: Sequence[NewEntry], *,
        unless: Callable[[], bool] | None = None,
    ) -> bool:  # fmt: skip
        """Store what one agent found in a batch, and that it is done, in one transaction.

        Answers False, and stores nothing, when it was done already, or when `unless` says so at the last moment.
        Raises Fenced, and stores nothing, when a worker with a higher fence has been here."""
        origin = Origin.of(batch)
        rows = [self._row(origin, agent, at, check_new(entry)) for at, entry in enumerate(entries)]
        try:
            with self._db.write("commit") as connection:
                # First: it locks the row of this user until the end, so that two workers cannot both pass.
                self._check_fence(connection, origin)
                checkpoint = self._claim(connection, origin, agent)
                if checkpoint is not None and rows:
                    self._insert(connection, checkpoint, rows)
                if unless is not None and unless():
                    raise _Unwanted
                return checkpoint is not None
        except _Unwanted:
            return False

    def _check_fence(self, connection: Connection, origin: Origin) -> None:
        self._tables.guard.check(connection, origin.resource, origin.fence)

    def _claim(self, connection: Connection, origin: Origin, agent: str) -> int | None:
        """Write down that the agent is done; None if it was."""
        insert = sqlite.insert if self._db.sqlite else postgresql.insert
        statement = (
            insert(self._tables.checkpoints)
            .values(buffer=origin.buffer, user_key=origin.user, batch=origin.batch, agent=agent, fence=origin.fence,
                    at=clock(self._db))
            .on_conflict_do_nothing()
            .returning(self._tables.checkpoints.c.id)
        )  # fmt: skip
        return connection.execute(statement).scalar_one_or_none()

    def _insert(self, connection: Connection, checkpoint: int, rows: list[dict[str, Any]]) -> None:
        now = connection.execute(sa.select(clock(self._db))).scalar_one()
        for row in rows:
            row |= {"checkpoint": checkpoint, "at": now if row["at"] is None else row["at"]}
        insert = sqlite.insert if self._db.sqlite else postgresql.insert
        # A message that is here under another batch stays as it is: a failover may forget who had what.
        connection.execute(
            insert(self._tables.entries).on_conflict_do_nothing(index_elements=["user_key", "source"]), rows
        )

    def _row(self, origin: Origin, agent: str, position: int, entry: NewEntry) -> dict[str, Any]:
        content = storable(entry.content)
        return {
            "user_key": origin.user, "kind": entry.kind, "content": content,
            "data": None if entry.data is None else to_json(entry.data),
            "position": position, "at": origin.at if entry.at is None else float(entry.at),
            "terms": terms_column(self._db, content),
            "source": None if entry.message is None else f"{origin.buffer}:{agent}:{entry.message}",
        }  # fmt: skip

    def _same_batch(self, origin: Origin) -> tuple[sa.ColumnElement[bool], ...]:
        columns = self._tables.checkpoints.c
        return columns.user_key == origin.user, columns.buffer == origin.buffer, columns.batch == origin.batch

    # -- remembering --------------------------------------------------------------------------------------------

    def recall(self, user: Id, query: str = "", limit: int = 10, kind: str | None = None) -> list[Entry]:
        """Entries of this user in which a word of the query occurs, the best first; without a query the newest.

        Nothing in the query is an operator. A script without spaces is found by any two neighbouring characters."""
        check_recall(query, limit, kind)
        statement = recall_statement(self._db, self._tables, user_column(user), query, limit, kind)
        if statement is None:
            return []
        with self._db.read("recall") as connection:
            return [_entry(row) for row in connection.execute(statement)]

    def export(self, user: Id) -> dict[str, Any]:
        """All that is kept of this user, as a JSON value, oldest first. Bytes in data are {"$bytes": base64}."""
        column, entries, checkpoints = user_column(user), self._tables.entries, self._tables.checkpoints
        wanted = rows_of(self._tables).where(entries.c.user_key == column).order_by(entries.c.at, entries.c.id)
        marks = sa.select(checkpoints).where(checkpoints.c.user_key == column).order_by(checkpoints.c.id)
        with self._db.read("export") as connection:
            return {
                "user": column,
                "schema": len(STEPS),
                "entries": [_exported(row) for row in connection.execute(wanted).mappings()],
                "checkpoints": [_exported(row) for row in connection.execute(marks).mappings()],
            }

    # -- forgetting ---------------------------------------------------------------------------------------------

    def forget(self, user: Id) -> Forgotten:
        """Remove all that is kept of this user, here and in `forget_also`, and refuse workers that still carry it.

        `forget_also` comes first; if one of them fails nothing is removed here: call it again. What arrives while it
        runs may be forgotten too."""
        user_column(user)
        return self.erase(user, blocking(fences_of(self.forget_also, user)))

    def erase(self, user: Id, fences: Mapping[str, int] | None = None) -> Forgotten:
        """The part of `forget` that is SQL: remove the rows of this user.

        `fences` has, for each buffer, a fence higher than any given out: a worker with a lower one is refused from now
        on. For a buffer that is not named, those are refused that have already written."""
        column, entries, checkpoints = user_column(user), self._tables.entries, self._tables.checkpoints
        given = {name_column(name, "buffer"): _fence(fence) for name, fence in (fences or {}).items()}
        with self._db.write("forget") as connection:
            # Before the rows: a worker in the middle of its commit is waited for, and what it wrote is then deleted.
            self._raise_fences(connection, column, given)
            gone = connection.execute(sa.delete(entries).where(entries.c.user_key == column)).rowcount
            marks = connection.execute(sa.delete(checkpoints).where(checkpoints.c.user_key == column)).rowcount
            if self._db.sqlite and gone:
                # The index only marks words as deleted; merging it drops them for good.
                index = f"{self._tables.prefix}_index"
                connection.exec_driver_sql(f"INSERT INTO {index} ({index}) VALUES ('optimize')")  # noqa: S608
        self._db.settle()
        return Forgotten(entries=gone, checkpoints=marks)

    def _raise_fences(self, connection: Connection, user: str, given: Mapping[str, int]) -> None:
        columns = self._tables.checkpoints.c
        seen = connection.execute(
            sa.select(columns.buffer, sa.func.max(columns.fence)).where(columns.user_key == user)
            .group_by(columns.buffer)
        ).all()  # fmt: skip
        fences = dict(given)
        for buffer, fence in seen:
            fences[buffer] = max(fences.get(buffer, 0), min(fence + 1, MAX_FENCE))
        for buffer, fence in sorted(fences.items()):  # in one order, so that two that forget do not wait for each other
            try:
                self._tables.guard.check(connection, resource_of(buffer, user), fence)
            except Fenced:
                continue  # a still higher one is known: all the better

    # -- inside -------------------------------------------------------------------------------------------------

    @property
    def _db(self) -> Database:
        if not self._opened:
            raise ConfigurationError("open it first: `with Store(...) as store:` or `store.open()`")
        return self._database


class _Unwanted(Exception):
    """Roll back: nobody waits for this any more."""


def _fence(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_FENCE:
        raise ConfigurationError(f"pass fences from 0 to {MAX_FENCE}, not {value!r:.60}")
    return value


def _data(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _exported(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {name: _data(value) if name == "data" else value for name, value in row.items() if name != "user_key"}


def _entry(row: Any) -> Entry:
    return Entry(
        user=decode(row.user_key), kind=row.kind, content=row.content, data=_data(row.data),
        batch=str(decode(row.batch)), agent=row.agent, position=row.position, fence=row.fence, at=row.at, id=row.id,
    )  # fmt: skip
