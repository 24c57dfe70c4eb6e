"""The archive: runs that have ended, with their events, in the same database as the memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from holdfast.engine.limits import check_count
from holdfast.errors import ConfigurationError
from holdfast.keys import Id, decode
from holdfast.memory.batch import name_column, user_column
from holdfast.memory.entry import storable, to_json
from holdfast.memory.memory import Memory
from holdfast.memory.store import Store

_WITHOUT_EVENTS = ["collection", "run", "run_key", "kind", "state", "reason", "attempt", "created", "started", "ended"]


class EndedRun(Protocol):
    """What is needed of a run: `holdfast.Run` has it."""

    @property
    def id(self) -> Id: ...
    @property
    def key(self) -> Id | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def created(self) -> float: ...
    @property
    def started(self) -> float | None: ...
    @property
    def ended(self) -> float | None: ...
    @property
    def input(self) -> Any: ...
    @property
    def result(self) -> Any: ...


class RunEvent(Protocol):
    """What is needed of an event: `holdfast.Event` has it."""

    @property
    def id(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def data(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """A run as it was kept. Times are Unix seconds; bytes in input, result and events are {"$bytes": base64}."""

    collection: str
    id: Id
    key: Id | None
    kind: str
    state: str
    reason: str
    attempt: int
    created: float
    started: float | None
    ended: float | None
    input: Any = None
    result: Any = None
    events: Sequence[dict[str, Any]] = ()
    """Each with id, at, kind and data. Not in lists, like input and result."""


class RunArchive:
    """Keeps runs that have ended, in the tables of a `Memory` or `Store`, which must be open. Blocking; any thread.

    hf.archive(runs, RunArchive(memory))
    """

    def __init__(self, store: Store | Memory) -> None:
        self._store = store.store if isinstance(store, Memory) else store

    def __repr__(self) -> str:
        return f"<RunArchive in {self._store!r}>"

    def keep(self, collection: str, run: EndedRun, events: Iterable[RunEvent]) -> bool:
        """Store a run that has ended, once. Answers False if it was here already."""
        told = [{"id": event.id, "at": event.at, "kind": event.kind, "data": event.data} for event in events]
        row = {
            "collection": name_column(collection, "collection"), "run": user_column(run.id),
            "run_key": None if run.key is None else user_column(run.key), "kind": run.kind, "state": run.state,
            "reason": storable(run.reason), "attempt": run.attempt, "created": run.created, "started": run.started,
            "ended": run.ended, "input": to_json(run.input), "result": to_json(run.result), "events": to_json(told),
        }  # fmt: skip
        database, table = self._store._db, self._store._tables.runs
        insert = sqlite.insert if database.sqlite else postgresql.insert
        with database.write("keep run") as connection:
            added = connection.execute(
                insert(table).values(**row).on_conflict_do_nothing().returning(table.c.run)
            ).scalar_one_or_none()
        return added is not None

    def get(self, collection: str, run_id: Id) -> ArchivedRun | None:
        """The newest run with this id, with its events; None if there is none."""
        table = self._store._tables.runs
        wanted = (
            sa.select(table)
            .where(table.c.collection == name_column(collection, "collection"), table.c.run == user_column(run_id))
            .order_by(table.c.created.desc())
            .limit(1)
        )
        with self._store._db.read("get run") as connection:
            row = connection.execute(wanted).mappings().one_or_none()
        return None if row is None else _archived(row)

    def list(
        self, collection: str, *, key: Id | None = None, state: str | None = None, count: int = 100
    ) -> list[ArchivedRun]:
        """The runs that ended last, the newest first, without input, result and events."""
        check_count("count", count, 1, 10_000)
        table = self._store._tables.runs
        wanted = sa.select(*(table.c[name] for name in _WITHOUT_EVENTS)).where(
            table.c.collection == name_column(collection, "collection")
        )
        if key is not None:
            wanted = wanted.where(table.c.run_key == user_column(key))
        if state is not None:
            wanted = wanted.where(table.c.state == state)
        with self._store._db.read("list runs") as connection:
            rows = connection.execute(wanted.order_by(table.c.ended.desc()).limit(count)).mappings().all()
        return [_archived(row) for row in rows]

    def forget(self, collection: str, *, key: Id | None = None, before: float | None = None) -> int:
        """Remove the runs of a key, or those that ended before a time (Unix seconds), or both. Answers how many."""
        if key is None and before is None:
            raise ConfigurationError("pass key or before: without them all runs of the collection would be removed")
        table = self._store._tables.runs
        wanted = [table.c.collection == name_column(collection, "collection")]
        if key is not None:
            wanted.append(table.c.run_key == user_column(key))
        if before is not None:
            wanted.append(table.c.ended < before)
        with self._store._db.write("forget runs") as connection:
            gone = connection.execute(sa.delete(table).where(*wanted)).rowcount
        self._store._db.settle()
        return gone


def _archived(row: Any) -> ArchivedRun:
    key = row["run_key"]
    return ArchivedRun(
        collection=str(decode(row["collection"])), id=decode(row["run"]), key=None if key is None else decode(key),
        kind=row["kind"], state=row["state"], reason=row["reason"], attempt=row["attempt"], created=row["created"],
        started=row["started"], ended=row["ended"],
        **{name: json.loads(row[name]) for name in ("input", "result", "events") if name in row},
    )  # fmt: skip
