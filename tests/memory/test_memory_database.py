"""Which databases there are, how they are set up, and what is told when they fail."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from memory_help import contents, rows, said

from holdfast.errors import ConfigurationError, Indeterminate, Unavailable
from holdfast.memory import Memory, Store, database
from holdfast.memory.database import Database

SECRET = "hunter2-Sw0rdfish"


def told(error: BaseException | None) -> str:
    """All that is printed of an error and its causes, but for the lines of source."""
    lines = []
    while error is not None:
        lines += [str(error), repr(error), *getattr(error, "__notes__", ())]
        error = error.__cause__ or error.__context__
    return "\n".join(lines)


async def test_an_engine_of_ones_own_is_used_and_left_open(url: str) -> None:
    engine = Database(url).engine
    async with Memory(engine) as memory:
        await memory.absorb(said("tea"))
        assert [entry.content for entry in await memory.recall("user-7", "tea")] == ["tea"]
        await memory.forget("user-7")
        await memory.absorb(said("milk", fence=5))
    with engine.connect() as connection:
        assert connection.execute(sa.text("select content from holdfast_memory_entries")).scalars().all() == ["milk"]
    engine.dispose()


async def test_a_database_in_memory_is_shared_by_all_threads() -> None:
    async with Memory("sqlite://") as memory:
        await asyncio.gather(*(memory.absorb(said(f"tea {n}", id=f"b{n}", key=f"u{n}")) for n in range(20)))

        found = await asyncio.gather(*(memory.recall(f"u{n}", "tea") for n in range(20)))

        assert [[entry.content for entry in entries] for entries in found] == [[f"tea {n}"] for n in range(20)]


async def test_the_default_is_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with Memory() as memory:
        await memory.absorb(said("tea"))

    assert (tmp_path / "holdfast-memory.db").exists()


def test_a_file_of_sqlite_is_set_up_for_many(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        assert rows(sqlite_url, "pragma journal_mode") == [("wal",)]
        with store._db.write("test") as connection:
            settings = [
                connection.exec_driver_sql(f"pragma {name}").scalar_one()
                for name in ("foreign_keys", "secure_delete", "synchronous", "busy_timeout")
            ]
        assert settings == [1, 1, 2, 30_000]


def test_a_reader_does_not_wait_for_a_writer(sqlite_url: str) -> None:
    with Store(sqlite_url) as store, store._db.write("test") as connection:
        connection.exec_driver_sql("delete from holdfast_memory_entries")

        assert store.recall("user-7") == []


def test_a_locked_file_is_unavailable_and_nothing_is_changed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    with Store(sqlite_url) as store:
        other = sqlite3.connect(store._db.engine.url.database, isolation_level=None)
        other.execute("begin immediate")

        with pytest.raises(Unavailable, match="check that the database of the memory is up"):
            store.absorb(said("tea"))

        other.execute("rollback")
        other.close()
        store.absorb(said("tea"))
        assert contents(store) == ["tea"]


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    store = Store(f"postgresql://holdfast:{SECRET}@/x?host={tmp_path}")

    with pytest.raises(Unavailable) as failed:
        store.open()

    assert SECRET not in told(failed.value)
    store.close()


def test_a_connection_lost_during_the_commit_is_indeterminate(postgres: Any) -> None:
    where = f"postgresql://holdfast@/postgres?host={postgres.directory}"

    class Cut(Store):
        def _claim(self, connection: Any, origin: Any, agent: str) -> int | None:
            self.pid = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
            return super()._claim(connection, origin, agent)

        def cut(self) -> bool:
            rows(where, f"select pg_terminate_backend({self.pid})")
            return False

    with Cut(where, prefix="cut") as store:
        # Given a server that ends the connection after the last statement and before the commit
        with pytest.raises(Indeterminate, match="send it again"):
            store.commit(said(), "x", [], unless=store.cut)

        # expect that sending it again resolves it
        assert store.commit(said(), "x", []) is True
        assert len(store.export("user-7")["checkpoints"]) == 1


def test_a_connection_lost_before_is_unavailable_and_the_next_call_has_a_new_one(postgres: Any) -> None:
    where = f"postgresql://holdfast@/postgres?host={postgres.directory}"
    with Store(where, prefix="lost") as store:

        class Cut(Store):
            def _check_fence(self, connection: Any, origin: Any) -> None:
                own = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
                rows(where, f"select pg_terminate_backend({own})")
                super()._check_fence(connection, origin)

        with Cut(where, prefix="lost") as cut, pytest.raises(Unavailable):
            cut.commit(said(), "x", [])

        rows(where, "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() "
                    "and backend_type = 'client backend'")  # fmt: skip
        assert store.commit(said(), "x", []) is True


@pytest.mark.parametrize(
    "bad",
    [
        "", "nonsense", f"mysql://user:{SECRET}@host/x", f"oracle+nothing://user:{SECRET}@host/x",
        "sqlite+aiosqlite:///x.db", f"postgresql+asyncpg://user:{SECRET}@host/x", f"://user:{SECRET}@host",
        f"postgresql://user:{SECRET}@host:port/x", 5, None,
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Store(bad)

    assert SECRET not in told(refused.value)


def test_no_password_and_no_content_in_what_is_printed(caplog: pytest.LogCaptureFixture, sqlite_url: str) -> None:
    caplog.set_level(logging.DEBUG)
    shown = f"{Store(f'postgresql://user:{SECRET}@host/x')!r} {Memory(f'postgresql://user:{SECRET}@host/x')!r}"

    assert "***" in shown
    assert SECRET not in shown
    with Store(sqlite_url) as store:
        store._db.engine.echo = True
        store.absorb(said("what the user said"))
        with store._db.write("test") as connection:
            connection.exec_driver_sql("drop table holdfast_memory_entries")
        with pytest.raises(Unavailable) as failed:
            store.absorb(said("what the user said", fence=2, id="2"))
    assert "what the user said" not in caplog.text + told(failed.value)


@pytest.mark.parametrize("call", ["done", "commit", "recall", "export", "erase"])
def test_what_is_not_open_says_so(sqlite_url: str, call: str) -> None:
    arguments = {"done": (said(),), "commit": (said(), "x", [])}.get(call, ("user-7",))

    with pytest.raises(ConfigurationError, match="open it first"):
        getattr(Store(sqlite_url), call)(*arguments)


async def test_opening_and_closing_twice_is_harmless(url: str) -> None:
    memory = Memory(url)
    await memory.open()
    await memory.open()
    assert "open>" in repr(memory)
    await memory.close()
    await memory.close()
    assert "closed>" in repr(memory)
    await memory.open()
    await memory.absorb(said("tea"))
    await memory.close()
