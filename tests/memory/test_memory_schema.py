"""Tables and their changes: from the first version on, many processes at once, never backwards."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from memory_help import contents, everything, execute, rows, said

from holdfast.errors import ConfigurationError, Fenced
from holdfast.memory import Store, schema
from holdfast.memory.batch import resource_of
from holdfast.memory.database import Database
from holdfast.memory.schema import STEPS, Tables, migrate
from support.conditions import until_blocking


def versions(url: str) -> list[int]:
    return [version for (version,) in rows(url, "select version from holdfast_memory_schema order by version")]


def first_version(url: str) -> None:
    """A database as version 1 left it, with rows."""
    database = Database(url)
    database.prepare()
    assert migrate(database, Tables("holdfast_memory"), STEPS[:1]) == 1
    database.close()
    fence = f"insert into holdfast_memory_fences (resource, fence) values ('{resource_of('messages', 'user-7')}', 7)"
    mark = (
        "insert into holdfast_memory_checkpoints (buffer, user_key, batch, agent, fence, at) "
        "values ('messages', 'user-7', 'old', 'verbatim', 7, 10.0)"
    )
    entries = [
        "insert into holdfast_memory_entries (checkpoint, user_key, kind, content, data, position, at) "
        f"values (1, 'user-7', 'episodic', 'entry {number} 東京', '{{\"n\":{number}}}', {number}, 10.0)"
        for number in range(1203)
    ]
    execute(url, fence, mark, *entries)


def test_a_database_of_version_1_is_brought_up_to_date(url: str) -> None:
    # Given one with rows, more than are worked on at once
    first_version(url)
    assert versions(url) == [1]

    # when it is opened
    with Store(url) as store:
        # expect all that there was, and now to be found
        assert versions(url) == [1, 2, 3, 4, 5]
        assert len(contents(store)) == 1203
        for number in (0, 499, 500, 1202):
            (entry,) = store.recall("user-7", f"{number}", kind="episodic")
            assert (entry.content, entry.data) == (f"entry {number} 東京", {"n": number})
        assert len(store.recall("user-7", "東京", limit=1000)) == 1000
        # and that what was done and seen still counts
        assert store.done(said(id="old")) == {"verbatim"}
        with pytest.raises(Fenced):
            store.absorb(said("late", id="older", fence=6))
        store.absorb(said("new tea", id="new", fence=8))
        assert [entry.content for entry in store.recall("user-7", "tea")] == ["new tea"]
        store.forget("user-7")
        assert "東京" not in everything(url)


def test_a_worker_of_the_version_before_goes_on_while_the_new_one_is_rolled_out(url: str) -> None:
    first_version(url)
    with Store(url) as store:
        # when code that knows nothing of the new column writes
        execute(
            url,
            "insert into holdfast_memory_entries (checkpoint, user_key, kind, content, position, at) "
            "values (1, 'user-7', 'episodic', 'by the old one', 5000, 99.0)",
        )

        # expect it to be there, if not to be found by its words
        assert store.recall("user-7", limit=1)[0].content == "by the old one"
        assert store.recall("user-7", "old") == []


def test_many_that_start_at_once_make_the_tables_once(url: str) -> None:
    stores = [Store(url) for _ in range(6)]
    barrier = threading.Barrier(len(stores))

    def start(store: Store) -> None:
        barrier.wait(20)
        store.open()

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(start, stores))

    assert versions(url) == [1, 2, 3, 4, 5]
    stores[0].absorb(said("tea"))
    assert [contents(store) for store in stores] == [["tea"]] * 6
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    ("url", "guarded"),
    [("sqlite", True), ("postgresql", True), ("postgresql", False)],  # SQLite itself lets only one writer in
    indirect=["url"], ids=["sqlite", "postgresql", "postgresql without the lock"],
)  # fmt: skip
def test_while_one_takes_a_step_no_other_does(url: str, guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go = [], threading.Event()

    def slow(connection: Any, database: Database, tables: Tables) -> None:
        entered.append(database)
        assert go.wait(20)
        STEPS[1](connection, database, tables)

    # Given a process in the middle of the second step
    first_version(url)
    if not guarded:
        monkeypatch.setattr(schema, "_alone", lambda *_: None)
    one, other, tables = Database(url), Database(url), Tables("holdfast_memory")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(migrate, one, tables, (STEPS[0], slow))
        until_blocking(lambda: len(entered) == 1)

        # when another starts
        second = pool.submit(migrate, other, tables, (STEPS[0], slow))

        # expect it to wait, and then to have nothing to do; without the lock it begins too
        if not guarded:
            until_blocking(lambda: len(entered) == 2)
            go.set()
            assert sum(isinstance(future.exception(60), Exception) for future in (first, second)) == 1
        else:
            if url.startswith("postgresql"):
                until_blocking(lambda: rows(url, "select 1 from pg_locks where locktype = 'advisory' and not granted"))
            go.set()
            assert (first.result(60), second.result(60)) == (1, 0)
            assert len(entered) == 1
    for database in (one, other):
        database.close()


def test_a_step_that_fails_leaves_the_one_before(url: str) -> None:
    # Given a second step that makes something and then fails
    def broken(connection: Any, *_: Any) -> None:
        connection.exec_driver_sql("create table holdfast_memory_half (a integer)")
        raise ZeroDivisionError

    database, tables = Database(url), Tables("holdfast_memory")
    with pytest.raises(ZeroDivisionError):
        migrate(database, tables, (STEPS[0], broken))

    # expect the first to be there and nothing of the second, and that it can be taken later
    assert versions(url) == [1]
    with database.read("test") as connection:
        assert not sa.inspect(connection).has_table("holdfast_memory_half")
    assert migrate(database, tables) == len(STEPS) - 1
    assert migrate(database, tables) == 0
    database.close()


def test_a_newer_database_is_refused_and_left_alone(url: str) -> None:
    with Store(url):
        execute(url, "insert into holdfast_memory_schema (version, at) values (6, 0)")
    before = everything(url)

    with pytest.raises(ConfigurationError, match=r"run a newer version of holdfast here: .* schema 6, .* up to 5"):
        Store(url).open()

    assert everything(url) == before


def test_opening_again_needs_no_right_to_make_tables(url: str) -> None:
    with Store(url):
        pass
    made = []
    database = Database(url)
    sa.event.listen(database.engine, "before_cursor_execute", lambda *event: made.append(event[2]))

    assert migrate(database, Tables("holdfast_memory")) == 0

    assert made
    assert not [statement for statement in made if statement.lstrip().upper().startswith(("CREATE", "INSERT", "ALTER"))]
    database.close()


def test_prefixes_keep_memories_apart(url: str) -> None:
    with Store(url, prefix="one") as one, Store(url, prefix="other") as other:
        one.absorb(said("tea", fence=9))
        other.absorb(said("milk", fence=1))

        assert (contents(one), contents(other)) == (["tea"], ["milk"])
        assert [entry.content for entry in one.recall("user-7", "tea milk")] == ["tea"]


@pytest.mark.parametrize("prefix", ["", "a b", "A", "x" * 41, 'a"', "1a", "a;", None])
def test_a_prefix_that_is_no_plain_name_is_refused(prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        Store("sqlite://", prefix=prefix)


def test_the_longest_prefix_works(url: str) -> None:
    with Store(url, prefix="p" * 40) as store:
        store.absorb(said("tea"))

        assert len(store.recall("user-7", "tea")) == 1
        assert store.forget("user-7").entries == 1
