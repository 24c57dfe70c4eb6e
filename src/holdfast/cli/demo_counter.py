"""Counters in SQLite that several processes raise: the resource that a lock guards, with the check of the fence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast import SqlGuard

BUSY = 30.0


class Counter:
    """Each call is a transaction on a connection of its own, so that any thread may make it.

    `fence`: refuse with Fenced, and change nothing, if a higher one was seen; None: do not look, which is the mistake
    that the tests put in.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = SqlGuard()

    def create(self) -> None:
        with self._transaction() as connection:
            self._guard.create(connection)
            connection.execute("CREATE TABLE counters (number INTEGER PRIMARY KEY, value INTEGER NOT NULL)")
            connection.execute("CREATE TABLE writes (number INTEGER NOT NULL, value INTEGER NOT NULL)")

    def read(self, number: int, fence: int | None) -> int:
        with self._transaction() as connection:
            # Here too: from now on a former holder, who has read the same, is refused when it writes.
            self._check(connection, number, fence)
            found = connection.execute("SELECT value FROM counters WHERE number = ?", (number,)).fetchone()
            return int(found[0]) if found else 0

    def write(self, number: int, value: int, fence: int | None) -> None:
        with self._transaction() as connection:
            self._check(connection, number, fence)
            connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (number, value))
            connection.execute("INSERT INTO writes VALUES (?, ?)", (number, value))

    def values(self) -> dict[int, int]:
        """What each counter says."""
        with self._transaction() as connection:
            return dict(connection.execute("SELECT number, value FROM counters"))

    def writes(self) -> list[tuple[int, int]]:
        """Everything that was ever written: counter and value."""
        with self._transaction() as connection:
            return list(connection.execute("SELECT number, value FROM writes ORDER BY rowid"))

    def _check(self, connection: sqlite3.Connection, number: int, fence: int | None) -> None:
        if fence is not None:
            self._guard.check(connection, f"counter:{number}", fence)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=BUSY, isolation_level=None)) as connection:
            connection.execute(
                "PRAGMA synchronous = OFF"
            )  # a killed process loses nothing by it, and the power stays on
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
