"""The tables, and the steps by which a database gets them.

    <prefix>_schema        which steps were taken
    <prefix>_fences        SqlGuard: the highest fence of each buffer and user, under a digest
    <prefix>_checkpoints   one row for each batch and agent that is done
    <prefix>_entries       what is remembered
    <prefix>_runs          runs that have ended, with their events
    <prefix>_subscribers   who is told of what a monitor finds
    <prefix>_snapshots     what each thing that is monitored was, and when
    <prefix>_pushes        how telling the subscribers went
    <prefix>_index         SQLite: the full-text index, kept in step by triggers (PostgreSQL: a column of entries)

A step is never changed once it is released; the next change is a new step. A step is applied in one transaction, in
which no other process applies any. Code of the step before must be able to work with the tables of the next one, as
both run at the same time while a new version is rolled out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import sqlalchemy as sa

from holdfast.errors import ConfigurationError
from holdfast.locks.fencing import SqlGuard
from holdfast.memory.database import Connection, Database
from holdfast.memory.words import indexed

_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_ROWS_AT_ONCE = 500


class Hidden(str):
    """Text that nothing shows which shows the parameters of a statement, or the rows that it found."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class HiddenText(sa.TypeDecorator[str]):
    """A column with secrets in it: no log of an engine shows them, however much it was told to log."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else Hidden(value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else Hidden(value)


class Tables:
    """The tables under one prefix, as the newest step leaves them."""

    def __init__(self, prefix: str) -> None:
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(f"pass a prefix of 1 to 40 small letters, digits or _, not {prefix!r:.60}")
        self.prefix = prefix
        self.guard = SqlGuard(f"{prefix}_fences")
        meta = sa.MetaData()
        self.schema = sa.Table(
            f"{prefix}_schema", meta, sa.Column("version", sa.Integer, primary_key=True), sa.Column("at", sa.Double)
        )
        self.checkpoints = sa.Table(
            f"{prefix}_checkpoints", meta,
            sa.Column("id", sa.BigInteger, primary_key=True),
            sa.Column("buffer", sa.Text), sa.Column("user_key", sa.Text), sa.Column("batch", sa.Text),
            sa.Column("agent", sa.Text), sa.Column("fence", sa.BigInteger), sa.Column("at", sa.Double),
        )  # fmt: skip
        self.entries = sa.Table(
            f"{prefix}_entries", meta,
            sa.Column("id", sa.BigInteger, primary_key=True),
            sa.Column("checkpoint", sa.BigInteger), sa.Column("user_key", sa.Text), sa.Column("kind", sa.Text),
            sa.Column("content", sa.Text), sa.Column("data", sa.Text), sa.Column("position", sa.Integer),
            sa.Column("at", sa.Double), sa.Column("terms", sa.Text), sa.Column("source", sa.Text),
        )  # fmt: skip

        self.runs = sa.Table(
            f"{prefix}_runs", meta,
            sa.Column("collection", sa.Text), sa.Column("run", sa.Text), sa.Column("run_key", sa.Text),
            sa.Column("kind", sa.Text), sa.Column("state", sa.Text), sa.Column("reason", sa.Text),
            sa.Column("attempt", sa.Integer), sa.Column("created", sa.Double), sa.Column("started", sa.Double),
            sa.Column("ended", sa.Double), sa.Column("input", sa.Text), sa.Column("result", sa.Text),
            sa.Column("events", sa.Text),
        )  # fmt: skip
        self.subscribers = sa.Table(
            f"{prefix}_subscribers", meta,
            sa.Column("monitor", sa.Text, primary_key=True), sa.Column("name", sa.Text, primary_key=True),
            sa.Column("record", HiddenText), sa.Column("changed_at", sa.Double),
        )  # fmt: skip
        self.snapshots = sa.Table(
            f"{prefix}_snapshots", meta,
            sa.Column("monitor", sa.Text, primary_key=True), sa.Column("id", sa.Text, primary_key=True),
            sa.Column("place", sa.Text), sa.Column("source", sa.Text), sa.Column("key_text", sa.Text),
            sa.Column("kind", sa.Text), sa.Column("state", sa.Text), sa.Column("observed_at", sa.Double),
            sa.Column("at", sa.Double),
        )  # fmt: skip
        self.pushes = sa.Table(
            f"{prefix}_pushes", meta,
            sa.Column("id", sa.BigInteger, primary_key=True),
            sa.Column("monitor", sa.Text), sa.Column("subscriber", sa.Text), sa.Column("delivery", sa.Text),
            sa.Column("attempt", sa.Integer), sa.Column("changes", sa.Integer), sa.Column("outcome", sa.Text),
            sa.Column("detail", sa.Text), sa.Column("latency", sa.Double), sa.Column("at", sa.Double),
        )  # fmt: skip

    @property
    def lock_number(self) -> int:
        """What PostgreSQL calls the right to migrate these tables."""
        return int.from_bytes(hashlib.sha256(f"holdfast memory {self.prefix}".encode()).digest()[:8], signed=True)


def clock(database: Database) -> sa.ColumnElement[float]:
    """Unix seconds by the clock of the database."""
    if database.sqlite:
        return sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double)
    return sa.literal_column("extract(epoch from clock_timestamp())::float8", sa.Double)


def terms_column(database: Database, content: str) -> str:
    """The words of a text as its column holds them: with their positions where PostgreSQL makes its index of it.

    PostgreSQL's own parser is not used: where it cuts depends on the locale, and it takes some letters for blanks."""
    words = indexed(content)
    if database.sqlite:
        return " ".join(words)
    return " ".join(f"'{word}':{at}" for at, word in enumerate(words, 1))


# -- the steps --------------------------------------------------------------------------------------------------------


def _number(database: Database) -> str:
    """The type of an id that counts up."""
    if database.sqlite:
        return "INTEGER PRIMARY KEY AUTOINCREMENT"
    return "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"


def _tables(connection: Connection, database: Database, tables: Tables) -> None:
    p, number = tables.prefix, _number(database)
    tables.guard.create(connection)
    for statement in (
        f"CREATE TABLE {p}_checkpoints (id {number}, buffer TEXT NOT NULL, user_key TEXT NOT NULL, "
        "batch TEXT NOT NULL, agent TEXT NOT NULL, fence BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL)",
        # What makes a batch count once for each agent, whoever else delivers it at the same time.
        f"CREATE UNIQUE INDEX {p}_checkpoints_once ON {p}_checkpoints (user_key, buffer, batch, agent)",
        f"CREATE TABLE {p}_entries (id {number}, "
        f"checkpoint BIGINT NOT NULL REFERENCES {p}_checkpoints (id) ON DELETE CASCADE, "
        "user_key TEXT NOT NULL, kind TEXT NOT NULL, content TEXT NOT NULL, data TEXT, position INTEGER NOT NULL, "
        "at DOUBLE PRECISION NOT NULL)",
        f"CREATE UNIQUE INDEX {p}_entries_place ON {p}_entries (checkpoint, position)",
        f"CREATE INDEX {p}_entries_newest ON {p}_entries (user_key, at, id)",
    ):
        connection.exec_driver_sql(statement)


def _full_text(connection: Connection, database: Database, tables: Tables) -> None:
    p = tables.prefix
    # The default is for workers of the version before, which know nothing of this column.
    connection.exec_driver_sql(f"ALTER TABLE {p}_entries ADD COLUMN terms TEXT NOT NULL DEFAULT ''")
    _index_old_entries(connection, database, tables)
    if database.sqlite:
        # Each column stands for what it is searched by: the user as one word, and the terms. Without content of its
        # own the index keeps no second copy. "ascii" takes every other character for a letter: words were cut already.
        add = f"INSERT INTO {p}_index (rowid, owner, terms) VALUES (new.id, hex(new.user_key), new.terms);"  # noqa: S608
        drop = (
            f"INSERT INTO {p}_index ({p}_index, rowid, owner, terms) "  # noqa: S608 - a checked prefix, here and below
            "VALUES ('delete', old.id, hex(old.user_key), old.terms);"
        )
        for statement in (
            f"CREATE VIRTUAL TABLE {p}_index USING fts5 (owner, terms, content='', tokenize='ascii')",
            f"INSERT INTO {p}_index (rowid, owner, terms) SELECT id, hex(user_key), terms FROM {p}_entries",  # noqa: S608
            f"CREATE TRIGGER {p}_entries_added AFTER INSERT ON {p}_entries BEGIN {add} END",
            f"CREATE TRIGGER {p}_entries_dropped AFTER DELETE ON {p}_entries BEGIN {drop} END",
            f"CREATE TRIGGER {p}_entries_changed AFTER UPDATE ON {p}_entries BEGIN {drop} {add} END",
        ):
            connection.exec_driver_sql(statement)
    else:
        connection.exec_driver_sql(
            f"ALTER TABLE {p}_entries ADD COLUMN search tsvector GENERATED ALWAYS AS (terms::tsvector) STORED"
        )
        connection.exec_driver_sql(f"CREATE INDEX {p}_entries_search ON {p}_entries USING gin (search)")


def _index_old_entries(connection: Connection, database: Database, tables: Tables) -> None:
    entries, last = tables.entries, 0
    while True:
        rows = connection.execute(
            sa.select(entries.c.id, entries.c.content).where(entries.c.id > last).order_by(entries.c.id)
            .limit(_ROWS_AT_ONCE)
        ).all()  # fmt: skip
        if not rows:
            return
        connection.execute(
            sa.update(entries).where(entries.c.id == sa.bindparam("row")).values(terms=sa.bindparam("found")),
            [{"row": row.id, "found": terms_column(database, row.content)} for row in rows],
        )
        last = rows[-1].id


def _once_per_message(connection: Connection, database: Database, tables: Tables) -> None:
    p = tables.prefix
    connection.exec_driver_sql(f"ALTER TABLE {p}_entries ADD COLUMN source TEXT")
    connection.exec_driver_sql(f"CREATE UNIQUE INDEX {p}_entries_source ON {p}_entries (user_key, source)")


def _runs(connection: Connection, database: Database, tables: Tables) -> None:
    p = tables.prefix
    for statement in (
        f"CREATE TABLE {p}_runs (collection TEXT NOT NULL, run TEXT NOT NULL, run_key TEXT, kind TEXT NOT NULL, "
        "state TEXT NOT NULL, reason TEXT NOT NULL, attempt INTEGER NOT NULL, created DOUBLE PRECISION NOT NULL, "
        "started DOUBLE PRECISION, ended DOUBLE PRECISION, input TEXT NOT NULL, result TEXT NOT NULL, "
        # An id may be used again when the server has forgotten the run; the time tells the two apart.
        "events TEXT NOT NULL, PRIMARY KEY (collection, run, created))",
        f"CREATE INDEX {p}_runs_ended ON {p}_runs (collection, ended)",
        f"CREATE INDEX {p}_runs_key ON {p}_runs (collection, run_key, ended)",
    ):
        connection.exec_driver_sql(statement)


def _monitor(connection: Connection, database: Database, tables: Tables) -> None:
    p = tables.prefix
    # Compared byte by byte: a locale may pass over the signs in an id, and the pages of keys must follow each other.
    exact = "TEXT" if database.sqlite else 'TEXT COLLATE "C"'
    for statement in (
        f"CREATE TABLE {p}_subscribers (monitor TEXT NOT NULL, name TEXT NOT NULL, record TEXT NOT NULL, "
        "changed_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (monitor, name))",
        # `place` is the source and the key in one, short enough for an index; `key_text` is the key as it is.
        f"CREATE TABLE {p}_snapshots (monitor TEXT NOT NULL, id {exact} NOT NULL, place {exact} NOT NULL, "
        "source TEXT NOT NULL, key_text TEXT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, "
        "observed_at DOUBLE PRECISION NOT NULL, at DOUBLE PRECISION NOT NULL, PRIMARY KEY (monitor, id))",
        f"CREATE INDEX {p}_snapshots_place ON {p}_snapshots (monitor, place, observed_at, id)",
        f"CREATE INDEX {p}_snapshots_at ON {p}_snapshots (monitor, at)",
        f"CREATE TABLE {p}_pushes (id {_number(database)}, monitor TEXT NOT NULL, subscriber TEXT NOT NULL, "
        "delivery TEXT NOT NULL, attempt INTEGER NOT NULL, changes INTEGER NOT NULL, outcome TEXT NOT NULL, "
        "detail TEXT NOT NULL, latency DOUBLE PRECISION NOT NULL, at DOUBLE PRECISION NOT NULL)",
        f"CREATE INDEX {p}_pushes_at ON {p}_pushes (monitor, at, id)",
        f"CREATE INDEX {p}_pushes_told ON {p}_pushes (monitor, subscriber, at, id)",
    ):
        connection.exec_driver_sql(statement)


Step = Callable[[Connection, Database, Tables], None]
STEPS: tuple[Step, ...] = (_tables, _full_text, _once_per_message, _runs, _monitor)


# -- taking them ------------------------------------------------------------------------------------------------------


def migrate(database: Database, tables: Tables, steps: tuple[Step, ...] = STEPS) -> int:
    """Take the steps that are missing, each in its own transaction. Safe when many processes start at once.

    Answers how many were taken. Raises ConfigurationError, and changes nothing, when the database is newer than this
    code. Interrupted, it goes on with the step that was under way.
    """
    if _version_if_any(database, tables) == len(steps):
        return 0  # the usual case needs no right to make tables
    taken = 0
    while True:
        with database.write("migrate") as connection:
            _alone(connection, database, tables)
            tables.schema.create(connection, checkfirst=True)
            version = _checked(_version(connection, tables), len(steps))
            if version == len(steps):
                return taken
            steps[version](connection, database, tables)
            connection.execute(sa.insert(tables.schema).values(version=version + 1, at=clock(database)))
            taken += 1


def _alone(connection: Connection, database: Database, tables: Tables) -> None:
    if not database.sqlite:  # there a writer is alone anyway
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(tables.lock_number)))


def _version_if_any(database: Database, tables: Tables) -> int:
    with database.read("migrate") as connection:
        if not sa.inspect(connection).has_table(tables.schema.name):
            return 0
        return _version(connection, tables)


def _version(connection: Connection, tables: Tables) -> int:
    return int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(tables.schema.c.version), 0))).scalar_one())


def _checked(version: int, known: int) -> int:
    if version > known:
        raise ConfigurationError(
            f"run a newer version of holdfast here: the memory database has schema {version}, this one knows up to "
            f"{known}"
        )
    return version
