"""The database: which one, its transactions, and its failures in our words. SQLite and PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import QueuePool

from holdfast.errors import ConfigurationError, Indeterminate, Unavailable

_BUSY_SECONDS = 30.0
_SETTLE_SECONDS = 2.0
_OLDEST_SQLITE = (3, 35)  # the first with RETURNING

# secure_delete overwrites what is deleted: forgotten means gone from the file. FULL, because a batch is acknowledged
# after the commit and must not be lost with the power.
_SHARED_PRAGMAS = ("PRAGMA secure_delete = ON",)
_OWN_PRAGMAS = ("PRAGMA foreign_keys = ON", "PRAGMA synchronous = FULL", *_SHARED_PRAGMAS)

Connection = sa.Connection


class Database:
    """An engine, and transactions on it. An engine that was passed in is neither set up nor closed."""

    def __init__(self, url: str | sa.URL | sa.Engine) -> None:
        self._own = not isinstance(url, sa.Engine)
        self.engine = url if isinstance(url, sa.Engine) else _engine(url)
        self.dialect = self.engine.dialect.name
        if self.dialect not in ("sqlite", "postgresql") or self.engine.dialect.is_async:
            raise ConfigurationError(
                "pass a blocking engine or URL of SQLite (sqlite:///file) or PostgreSQL (postgresql+psycopg://), not "
                f"of {self.engine.dialect.name}+{self.engine.dialect.driver}"
            )

    @property
    def sqlite(self) -> bool:
        return self.dialect == "sqlite"

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    def prepare(self) -> None:
        """Check what the database can do, and set up a SQLite file of our own for several processes."""
        if not self.sqlite:
            return
        with _told("open"), self.engine.connect() as connection:
            _autocommit(connection)
            version = connection.exec_driver_sql("SELECT sqlite_version()").scalar_one()
            if tuple(map(int, version.split(".")[:2])) < _OLDEST_SQLITE:
                raise ConfigurationError(f"use SQLite 3.35 or newer: Python was built with {version}")
            options = connection.exec_driver_sql("PRAGMA compile_options").scalars().all()
            if "ENABLE_FTS5" not in options:
                raise ConfigurationError("use a SQLite with FTS5, its full-text search: this one was built without")
            if self._own:
                _write_ahead(connection)

    def close(self) -> None:
        """Close the connections of an engine of our own."""
        if self._own:
            self.engine.dispose()

    @contextmanager
    def write(self, operation: str) -> Iterator[Connection]:
        """One transaction, committed at the end, rolled back on any error.

        On SQLite it is the only writer from its first moment: a transaction that reads first and wants to write later
        can be refused however long it would wait.
        """
        with self._transaction(operation, "BEGIN IMMEDIATE", "READ COMMITTED") as connection:
            yield connection

    @contextmanager
    def read(self, operation: str) -> Iterator[Connection]:
        """One transaction that sees one state of the database."""
        with self._transaction(operation, "BEGIN", "REPEATABLE READ") as connection:
            yield connection

    def settle(self) -> None:
        """Empty SQLite's write-ahead log, in which deleted rows can still be read.

        A reader that stays long leaves it to the next time, as nobody can write while this waits."""
        if self.sqlite and self._own:
            with _told("forget"), self.engine.connect() as connection:
                _autocommit(connection)
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {_SETTLE_SECONDS * 1000:.0f}")
                try:
                    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                finally:
                    connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000:.0f}")

    @contextmanager
    def _transaction(self, operation: str, begin: str, isolation: str) -> Iterator[Connection]:
        with _told(operation), self.engine.connect() as connection:
            if not self.sqlite:
                with _committing(connection.execution_options(isolation_level=isolation), operation):
                    yield connection
                return
            # The driver's own idea of where a transaction begins is too late for us: we say it ourselves.
            _autocommit(connection)
            for pragma in _OWN_PRAGMAS if self._own else _SHARED_PRAGMAS:
                connection.exec_driver_sql(pragma)
            connection.exec_driver_sql(begin)
            try:
                yield connection
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                with suppress(exc.SQLAlchemyError):  # some failures have rolled back already
                    connection.exec_driver_sql("ROLLBACK")
                raise


def _engine(url: str | sa.URL) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):  # its text would show the password
        raise ConfigurationError("pass a URL like sqlite:///memory.db or postgresql://user@host/database") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    # Parameters are what users said: they belong into no log and no error.
    options: dict[str, Any] = {"hide_parameters": True}
    if parsed.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": _BUSY_SECONDS}
        if parsed.database in (None, "", ":memory:"):
            # Such a database lives in its connection: all threads take turns on one.
            options |= {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": _BUSY_SECONDS}
            options["connect_args"]["check_same_thread"] = False
    else:
        options["pool_pre_ping"] = True
    try:
        return sa.create_engine(parsed, **options)
    except exc.NoSuchModuleError:
        raise ConfigurationError(f"pass a URL of SQLite or PostgreSQL, not of {parsed.drivername}") from None
    except ImportError as error:
        raise ConfigurationError(f"install the driver of {parsed.drivername}: {error}") from None


def _autocommit(connection: Connection) -> None:
    connection.execution_options(isolation_level="AUTOCOMMIT")


def _write_ahead(connection: Connection) -> None:
    """Readers and the writer do not wait for each other. The file keeps the mode."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            if connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() != "wal":
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            return
        except exc.OperationalError:  # SQLite does not wait here when two processes change the mode at once
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


@contextmanager
def _committing(connection: Connection, operation: str) -> Iterator[None]:
    transaction = connection.begin()
    try:
        yield
    except BaseException:
        # A server that is gone cannot be told, and has rolled back.
        with suppress(exc.SQLAlchemyError):
            transaction.rollback()
        raise
    try:
        transaction.commit()
    except (exc.OperationalError, exc.InterfaceError) as error:
        raise Indeterminate(
            "send it again: the database was lost while it committed, and a second time changes nothing",
            operation=f"memory/{operation}",
        ) from error


@contextmanager
def _told(operation: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise Unavailable(
            "check that the database of the memory is up, reachable and not locked; nothing was changed",
            operation=f"memory/{operation}", elapsed=time.monotonic() - started,
        ) from error  # fmt: skip
