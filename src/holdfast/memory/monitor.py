"""The monitor's store: who is told, what was observed, and how telling went, in the same database as the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError
from holdfast.keys import decode
from holdfast.memory.batch import user_column
from holdfast.memory.database import Database
from holdfast.memory.memory import Memory
from holdfast.memory.monitor_rows import (
    finite,
    key_of,
    key_text,
    monitor_column,
    place_of,
    places_of,
    push_of,
    push_row,
    record_of,
    snapshot_of,
    snapshot_row,
    subscriber_of,
)
from holdfast.memory.schema import Tables, clock
from holdfast.memory.store import DEFAULT_URL, Store
from holdfast.monitor.record import Change, Key, Push, Snapshot, Subscriber
from holdfast.monitor.record import Store as KeepsChanges

_ROWS_AT_ONCE = 500
_PRUNED_AT_ONCE = 5_000
_MOST = 10_000
_CENTURY = 100 * 365.25 * 86400


class MonitorStore(KeepsChanges):
    """Keeps subscribers, snapshots and the push log of monitors. Blocking; any thread.

        with MonitorStore("sqlite:///monitor.db") as store:
            store.history("prices", "shop", "sku-1")

    `store` is a file of SQLite, a PostgreSQL, a blocking SQLAlchemy engine, or a `Memory` or `Store`, whose database is
    then shared: that one must be open, and is neither opened nor closed here. `prefix` begins the names of all tables.

    Secrets of subscribers are stored as they are, because a message is signed with them: whoever may read the table can
    read them. No repr, log or error shows them.
    """

    def __init__(
        self, store: str | sa.URL | sa.Engine | Store | Memory = DEFAULT_URL, *, prefix: str | None = None
    ) -> None:
        self._own = not isinstance(store, (Store, Memory))
        if isinstance(store, (Store, Memory)):
            if prefix is not None:
                raise ConfigurationError("pass the prefix to the Memory or Store: its tables are used")
            self._store = store.store if isinstance(store, Memory) else store
        else:
            self._store = Store(store) if prefix is None else Store(store, prefix=prefix)

    def __repr__(self) -> str:
        return f"<MonitorStore in {self._store!r}>"

    # -- life ---------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Connect and bring the tables up to date. Refuses a database that is newer than this code."""
        if self._own:
            self._store.open()
        return self

    def close(self) -> None:
        """Close the connections, unless an engine, a Memory or a Store was passed in."""
        if self._own:
            self._store.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- who is told --------------------------------------------------------------------------------------------

    def subscribers(self, monitor: str) -> list[Subscriber]:
        """All of them, in the order of their names.

        Raises UnreadablePayload, with the name, when one cannot be read, and NewerPayload when it uses what only a
        newer version knows: left out, nobody would see that it is told nothing."""
        table = self._tables.subscribers
        wanted = sa.select(table.c.name, table.c.record).where(table.c.monitor == monitor_column(monitor))
        with self._db.read("subscribers") as connection:
            rows = connection.execute(wanted).all()
        found = [subscriber_of(monitor, str(decode(row.name)), row.record) for row in rows]
        return sorted(found, key=lambda subscriber: subscriber.name)

    def put_subscriber(self, monitor: str, subscriber: Subscriber) -> None:
        """Add, or replace the one of that name. Of two at the same time the later stays, whole.

        What has its default is not written: it follows the default, and a version that does not know it can read the
        rest. Refuses with InvalidPayload what would not come back as it is."""
        row = {
            "monitor": monitor_column(monitor), "name": user_column(subscriber.name),
            "record": record_of(subscriber), "changed_at": clock(self._db),
        }  # fmt: skip
        adding = self._insert(self._tables.subscribers).values(**row)
        with self._db.write("put subscriber") as connection:
            connection.execute(
                adding.on_conflict_do_update(
                    index_elements=["monitor", "name"],
                    set_={"record": adding.excluded.record, "changed_at": adding.excluded.changed_at},
                )
            )

    def remove_subscriber(self, monitor: str, name: str) -> bool:
        """Answers False if there was none. Its push log stays until it is pruned."""
        table, column = self._tables.subscribers, user_column(name)
        with self._db.write("remove subscriber") as connection:
            gone = connection.execute(
                sa.delete(table).where(table.c.monitor == monitor_column(monitor), table.c.name == column)
            ).rowcount
        if gone:
            self._db.settle()  # its secret is not to be read in a log of the database
        return gone > 0

    # -- what was observed --------------------------------------------------------------------------------------

    def keep(self, monitor: str, changes: Sequence[Change]) -> None:
        """Store what each was changed to: all of them or, if this raises, none. The same change again changes nothing.

        Bytes become {"$bytes": base64}, and so they come back."""
        column = monitor_column(monitor)
        # In one order, so that two who keep the same changes do not wait for each other.
        rows = sorted((snapshot_row(column, change) for change in changes), key=lambda row: str(row["id"]))
        self._insert_all("keep snapshots", self._tables.snapshots, rows)

    def history(
        self, monitor: str, source: str, key: Key, *, limit: int = 100, since: float | None = None,
        until: float | None = None,
    ) -> list[Snapshot]:  # fmt: skip
        """What this was, newest first by the time of observation: from `since` on, and before `until` (Unix seconds).

        Raises UnreadablePayload, with the id, when one cannot be read."""
        check_count("limit", limit, 1, _MOST)
        table = self._tables.snapshots
        wanted = sa.select(table).where(
            table.c.monitor == monitor_column(monitor), table.c.place == place_of(source, key_text(key))
        )
        if since is not None:
            wanted = wanted.where(table.c.observed_at >= finite("since", since))
        if until is not None:
            wanted = wanted.where(table.c.observed_at < finite("until", until))
        wanted = wanted.order_by(table.c.observed_at.desc(), table.c.id.desc()).limit(limit)
        with self._db.read("history") as connection:
            rows = connection.execute(wanted).all()
        return [snapshot_of(monitor, row) for row in rows]

    def latest(self, monitor: str, source: str, key: Key) -> Snapshot | None:
        """What this was when it was observed last; None when nothing is kept of it."""
        found = self.history(monitor, source, key, limit=1)
        return found[0] if found else None

    def keys(
        self, monitor: str, source: str | None = None, limit: int = 100, after: tuple[str, Key] | None = None
    ) -> list[tuple[str, Key]]:
        """What has a history, as source and key, in an order that stays. `after` is the last one of the page before."""
        check_count("limit", limit, 1, _MOST)
        low, high = ("", None) if source is None else places_of(source)
        if after is not None:
            low = max(low, place_of(after[0], key_text(after[1])))
        with self._db.read("keys") as connection:
            rows = connection.execute(self._page(monitor_column(monitor), low, high, limit)).all()
        return [(str(decode(row.place.partition(" ")[0])), key_of(monitor, row.key_text)) for row in rows]

    def _page(self, monitor: str, low: str, high: str | None, limit: int) -> sa.Select[Any]:
        """The next places. From one it jumps to the next in the index: a place costs the same with any history."""
        table = self._tables.snapshots
        of = table.alias()

        def following(place: Any) -> sa.ScalarSelect[Any]:
            ends = [] if high is None else [table.c.place < high]
            return (
                sa.select(table.c.place).where(table.c.monitor == monitor, table.c.place > place, *ends)
                .order_by(table.c.place).limit(1).correlate_except(table).scalar_subquery()
            )  # fmt: skip

        page = sa.select(following(low).label("place"), sa.literal(1).label("number")).cte("page", recursive=True)
        page = page.union_all(
            sa.select(following(page.c.place), page.c.number + 1)
            .where(page.c.place.is_not(None), page.c.number < limit)
        )  # fmt: skip
        # Any of its rows will do, but without an order PostgreSQL may look for one in the table instead of the index.
        key = (
            sa.select(of.c.key_text).where(of.c.monitor == monitor, of.c.place == page.c.place)
            .order_by(of.c.observed_at).limit(1).scalar_subquery()
        )  # fmt: skip
        return sa.select(page.c.place, key.label("key_text")).where(page.c.place.is_not(None)).order_by(page.c.number)

    # -- how telling went ---------------------------------------------------------------------------------------

    def record(self, pushes: Sequence[Push]) -> None:
        """Add to the push log: all of them or, if this raises, none. Sent again after Indeterminate, one may be there
        twice."""
        self._insert_all("record pushes", self._tables.pushes, [push_row(push) for push in pushes])

    def pushes(self, monitor: str, subscriber: str | None = None, limit: int = 100) -> list[Push]:
        """The push log, or the part of one subscriber, newest first."""
        check_count("limit", limit, 1, _MOST)
        table = self._tables.pushes
        wanted = sa.select(table).where(table.c.monitor == monitor_column(monitor))
        if subscriber is not None:
            wanted = wanted.where(table.c.subscriber == user_column(subscriber))
        with self._db.read("pushes") as connection:
            rows = connection.execute(wanted.order_by(table.c.at.desc(), table.c.id.desc()).limit(limit)).all()
        return [push_of(monitor, row) for row in rows]

    # -- forgetting ---------------------------------------------------------------------------------------------

    def prune(self, monitor: str, seconds: float) -> int:
        """Remove snapshots and pushes that were added more than so many seconds ago. Answers how many.

        What did not change for so long has no history then. Age is by the clock of the database and the time at which a
        change was found, not the one at which the observer says it was. It works in small transactions: others can
        write meanwhile, and what is removed when this is interrupted stays removed. Many may prune at once."""
        check_seconds("seconds", seconds, 0, _CENTURY)
        column = monitor_column(monitor)
        with self._db.read("prune") as connection:
            before = connection.execute(sa.select(clock(self._db) - float(seconds))).scalar_one()
        gone = sum(self._remove(table, column, before) for table in (self._tables.snapshots, self._tables.pushes))
        if gone:
            self._db.settle()
        return gone

    def _remove(self, table: sa.Table, monitor: str, before: float) -> int:
        # Rows that another one is removing are left to it.
        old = (
            sa.select(table.c.id).where(table.c.monitor == monitor, table.c.at < before).order_by(table.c.at)
            .limit(_PRUNED_AT_ONCE).with_for_update(skip_locked=True)
        )  # fmt: skip
        if not self._db.sqlite:
            # A plain subquery may be worked out anew for each row, and then more than so many go. With this one
            # SQLite's driver would not say how many went.
            old = sa.select(old.cte("old").c.id)
        removing = sa.delete(table).where(table.c.monitor == monitor, table.c.id.in_(old))
        total = 0
        while True:
            with self._db.write("prune") as connection:
                gone = connection.execute(removing).rowcount
            total += gone
            if gone < _PRUNED_AT_ONCE:
                return total

    # -- inside -------------------------------------------------------------------------------------------------

    @property
    def _db(self) -> Database:
        return self._store._db

    @property
    def _tables(self) -> Tables:
        return self._store._tables

    def _insert(self, table: sa.Table) -> Any:
        return (sqlite.insert if self._db.sqlite else postgresql.insert)(table)

    def _insert_all(self, operation: str, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Many rows in one statement: with RETURNING, SQLAlchemy makes one of them and keeps it for the next time."""
        if not rows:
            return
        adding = self._insert(table).on_conflict_do_nothing().returning(table.c.id)
        with self._db.write(operation) as connection:
            connection.execute(adding, rows, execution_options={"insertmanyvalues_page_size": _ROWS_AT_ONCE})
