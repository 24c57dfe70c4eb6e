"""Guards at the resource: an older fence is refused in the transaction of the write."""

from __future__ import annotations

import sqlite3
import threading

import aiosqlite
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm

from holdfast import ConfigurationError, Fenced, SqlGuard
from holdfast.sync import Holdfast
from support.postgres import Postgres


@pytest.fixture(scope="module")
def postgres():
    with Postgres() as server:
        yield server


def write(connection, guard: SqlGuard, fence: int, value: str) -> None:
    guard.check(connection, "report:42", fence)
    connection.execute(f"update reports set value = '{value}'")


def prepare(connection, guard: SqlGuard) -> None:
    guard.create(connection)
    guard.create(connection)  # again is harmless
    connection.execute("drop table if exists reports")
    connection.execute("create table reports (value text)")
    connection.execute("insert into reports values ('')")
    connection.commit()


def value(connection) -> str:
    return connection.execute("select value from reports").fetchone()[0]


def exercise(connection, guard: SqlGuard) -> None:
    prepare(connection, guard)
    write(connection, guard, 7, "seven")
    write(connection, guard, 7, "seven again")  # the same holder writes as often as it likes
    write(connection, guard, 9, "nine")
    connection.commit()
    with pytest.raises(Fenced) as refused:
        write(connection, guard, 8, "late")
    assert refused.value.fence == 8
    connection.rollback()
    assert value(connection) == "nine"
    guard.check(connection, "another", 1)
    connection.commit()


def test_sqlite(tmp_path):
    with sqlite3.connect(tmp_path / "db") as connection:
        exercise(connection, SqlGuard())
    connection.close()


def test_postgresql(postgres):
    with psycopg.connect(postgres.dsn) as connection:
        exercise(connection, SqlGuard("public.my_fences"))


async def test_async_connections(tmp_path, postgres):
    guard = SqlGuard()
    async with aiosqlite.connect(tmp_path / "db") as connection:
        await guard.acreate(connection)
        await guard.acheck(connection, "a", 5)
        with pytest.raises(Fenced):
            await guard.acheck(connection, "a", 4)
    async with await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
        await guard.acreate(connection)
        await guard.acheck(connection, "a", 5)
        with pytest.raises(Fenced):
            await guard.acheck(connection, "a", 4)
        await connection.rollback()


def test_sqlalchemy(tmp_path):
    guard = SqlGuard()
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/db")
    with engine.begin() as connection:
        guard.create(connection)
        guard.check(connection, "a", 5)
    with sqlalchemy.orm.Session(engine) as session, pytest.raises(Fenced):
        guard.check(session, "a", 4)
    engine.dispose()


def test_two_holders_cannot_pass_the_guard_at_the_same_time(postgres):
    """The older one is stopped even if its transaction began first: the row is locked until the newer one commits."""
    guard = SqlGuard()
    with psycopg.connect(postgres.dsn) as setup:
        prepare(setup, guard)
        write(setup, guard, 1, "start")
        setup.commit()
    old, new = psycopg.connect(postgres.dsn), psycopg.connect(postgres.dsn)
    outcome = []
    old.execute("select 1")  # its transaction is open before the newer one's
    write(new, guard, 20, "new")

    def late():
        try:
            write(old, guard, 10, "old")
            old.commit()
            outcome.append("written")
        except Fenced:
            outcome.append("fenced")

    thread = threading.Thread(target=late)
    thread.start()
    new.commit()
    thread.join(10)
    assert outcome == ["fenced"]
    old.rollback()
    assert value(new) == "new"
    old.close()
    new.close()


def test_without_the_guard_the_late_write_wins(tmp_path, valkey):
    """What the fence is for: the same story, once without the check and once with it."""
    guard = SqlGuard()
    database = sqlite3.connect(tmp_path / "db")
    prepare(database, guard)
    with Holdfast(valkey.url) as hf:
        paused = hf.lock("report:42", ttl=0.1, renew=False).acquire()
        paused.wait_lost(5)  # the process stood still past its deadline
        newer = hf.lock("report:42").acquire(wait=5)
        database.execute("update reports set value = 'newer'")
        database.execute("update reports set value = 'paused'")
        assert value(database) == "paused"
        write(database, guard, newer.fence, "newer")
        with pytest.raises(Fenced):
            write(database, guard, paused.fence, "paused")
        assert value(database) == "newer"
        newer.release()
    database.close()


class Unknown:
    def execute(self, *_):
        raise AssertionError("not reached")


def test_bad_use_is_told(tmp_path):
    with pytest.raises(ConfigurationError, match="plain table name"):
        SqlGuard("fences; drop table x")
    with pytest.raises(ConfigurationError, match="paramstyle"):
        SqlGuard().statement("pyformat")
    with pytest.raises(ConfigurationError, match=r"SqlGuard\.statement"):
        SqlGuard().check(Unknown(), "a", 1)
