"""Taking out and forgetting: all of a user, nothing of anybody else, and no worker brings it back."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from memory_help import Batch, Buffer, Message, Pair, Says, WithoutFence, contents, everything, rows, said

from holdfast.errors import ConfigurationError, Fenced, InvalidId
from holdfast.memory import Forgotten, Memory, NewEntry, Store

# -- export -----------------------------------------------------------------------------------------------------------


async def test_export_is_all_of_one_user_as_json(url: str) -> None:
    async with Memory(url) as memory:
        await memory.absorb(
            Batch([Message("m1", {"text": "tea", "raw": b"abc"}, 5.0)], pairs=[Pair("a", "b", 4.0)], fence=3)
        )
        await memory.absorb(said("not this", key="user-8"))

        taken = json.loads(json.dumps(await memory.export("user-7")))

        assert taken["user"] == "user-7"
        assert [(e["content"], e["at"], e["position"]) for e in taken["entries"]] == [
            ("user: a\nassistant: b", 4.0, 1),
            ("tea", 5.0, 0),
        ]
        entry = taken["entries"][1]
        assert entry["data"] == {"id": "m1", "data": {"text": "tea", "raw": {"$bytes": "YWJj"}}}
        assert (entry["buffer"], entry["batch"], entry["agent"], entry["fence"]) == (
            "messages",
            "batch-1",
            "verbatim",
            3,
        )
        (checkpoint,) = taken["checkpoints"]
        assert (checkpoint["batch"], checkpoint["agent"], checkpoint["fence"]) == ("batch-1", "verbatim", 3)


async def test_export_of_nobody_is_empty(sqlite_url: str) -> None:
    async with Memory(sqlite_url) as memory:
        taken = await memory.export(b"\xff")

        assert (taken["user"], taken["entries"], taken["checkpoints"]) == ("%ff", [], [])


# -- forget -----------------------------------------------------------------------------------------------------------

SECRET = "Xylophagous77"
USER = "jane.roe@example.org"


def files(url: str) -> bytes:
    """All that a SQLite database has on the disk."""
    path = Path(sa.make_url(url).database)
    return b"".join(found.read_bytes() for found in sorted(path.parent.glob(f"{path.name}*")))


def test_nothing_of_the_user_stays(url: str) -> None:
    with Store(url) as store:
        # Given a user with entries of all kinds among other users, some of them large, in several pieces of the index
        for number in range(12):
            text = f"{SECRET} likes 東京 {number} " + f"{SECRET}word{number} " * 50
            store.absorb(said(text, {"deep": [SECRET]}, key=USER, id=f"{USER}-{number}", fence=number + 1))
            store.absorb(said(f"other {number} " * 50, key=f"user-{number}"))
        assert SECRET in everything(url)
        assert USER in everything(url)

        # when the user is forgotten
        gone = store.forget(USER)

        # expect no trace in any row of any table, the index too
        assert gone == Forgotten(entries=24, checkpoints=12)
        left = everything(url).casefold()
        for trace in (SECRET, USER, USER.encode().hex(), "東京"):
            assert trace.casefold() not in left
        assert store.recall(USER) == store.recall(USER, SECRET) == []
        assert store.export(USER)["checkpoints"] == []
        # and the others as they were
        for number in range(12):
            assert [entry.user for entry in store.recall(f"user-{number}", str(number))] == [f"user-{number}"]
        if url.startswith("sqlite"):
            on_disk = files(url).lower()
            for trace in (SECRET, USER, USER.encode().hex(), "東京"):
                assert trace.lower().encode() not in on_disk


@pytest.mark.parametrize("removed", ["secure_delete", "merging the index", "emptying the log"])
def test_without_any_of_three_measures_a_trace_stays_in_the_file(
    sqlite_url: str, removed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each of them is for."""
    from holdfast.memory import database

    if removed == "secure_delete":
        monkeypatch.setattr(database, "_OWN_PRAGMAS", ("PRAGMA secure_delete = OFF",))
    if removed == "emptying the log":
        monkeypatch.setattr(database.Database, "settle", lambda self: None)
    with Store(sqlite_url) as store:
        for number in range(12):
            store.absorb(said(f"{SECRET} {number}", key=USER, id=f"{number}", fence=number + 1))
        if removed == "merging the index":
            with store._db.write("test") as connection:
                connection.exec_driver_sql("delete from holdfast_memory_entries")
            store._db.settle()
        else:
            store.forget(USER)

        assert SECRET.lower().encode() in files(sqlite_url).lower()


def test_a_reader_that_stays_does_not_stop_the_forgetting(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.memory import database

    monkeypatch.setattr(database, "_SETTLE_SECONDS", 0.05)
    with Store(sqlite_url) as store:
        store.absorb(said(SECRET, key=USER))
        # Given somebody who still looks at the state before
        with store._db.read("test") as reader:
            assert reader.exec_driver_sql("select count(*) from holdfast_memory_entries").scalar_one() == 1
            assert store.forget(USER) == Forgotten(entries=1, checkpoints=1)
            assert SECRET.lower().encode() in files(sqlite_url).lower()

        # expect the next forgetting, of whomever, to clean up, and others to have waited as long as ever
        store.forget("nobody")
        assert SECRET.lower().encode() not in files(sqlite_url).lower()
        with store._db.write("test") as connection:
            assert connection.exec_driver_sql("pragma busy_timeout").scalar_one() == 30_000


async def test_forgetting_twice_or_nobody_is_harmless(url: str) -> None:
    async with Memory(url) as memory:
        await memory.absorb(said("tea"))

        assert await memory.forget("user-7") == Forgotten(entries=1, checkpoints=1)
        assert await memory.forget("user-7") == Forgotten(entries=0, checkpoints=0)
        assert await memory.forget(b"\xff nobody") == Forgotten(entries=0, checkpoints=0)


async def test_the_others_forget_first(url: str) -> None:
    seen: list[list[str]] = []
    async with Memory(url) as memory:
        # Given a buffer and sessions that the memory shall forget with
        buffer = Buffer("messages", when=lambda: seen.append(contents(memory.store)))
        sessions = Buffer("chat", fence=None, when=lambda: seen.append(contents(memory.store)))
        memory.store.forget_also = (buffer, sessions)
        await memory.absorb(said("tea"))

        await memory.forget("user-7")

        # expect that they were asked, in order, while the entries were still there
        assert (buffer.forgot, sessions.forgot) == (["user-7"], ["user-7"])
        assert seen == [["tea"], ["tea"]]
        assert contents(memory.store) == []


async def test_when_another_fails_to_forget_nothing_is_removed_here(sqlite_url: str) -> None:
    class Broken:
        name = "messages"

        async def forget(self, user: Any) -> int:
            raise ConnectionError("no server")

    async with Memory(sqlite_url, forget_also=[Broken()]) as memory:
        await memory.absorb(said("tea"))

        with pytest.raises(ConnectionError):
            await memory.forget("user-7")

        assert contents(memory.store) == ["tea"]


def test_the_blocking_store_asks_plain_and_async_things(sqlite_url: str) -> None:
    class Plain:
        name = "messages"

        def forget(self, user: Any) -> int:
            return 50

    other = Buffer("others", fence=60)
    with Store(sqlite_url, forget_also=[Plain(), other]) as store:
        store.forget("user-7")

        assert other.forgot == ["user-7"]
        for buffer, fence in (("messages", 50), ("others", 60)):
            with pytest.raises(Fenced):
                store.absorb(said("x", buffer=buffer, fence=fence - 1))
            store.absorb(said("x", buffer=buffer, fence=fence))


# -- nobody brings it back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Store, WithoutFence])
async def test_a_worker_that_was_paused_over_the_forgetting(url: str, kind: type[Store]) -> None:
    agent = Says("slow")
    agent.go.clear()
    async with Memory(url, forget_also=[Buffer("messages", fence=90)]) as memory:
        memory.store.close()
        memory.store = kind(url, agents=[agent], forget_also=memory.store.forget_also).open()
        # Given a worker in the middle of a batch, the first of this user: no fence has been seen yet
        working = asyncio.create_task(memory.absorb(said("x", fence=40)))
        await agent.begun.wait()

        # when the user is forgotten and the worker goes on
        await memory.forget("user-7")
        agent.go.set()

        # expect it to be refused; without the check it writes what was forgotten
        if kind is Store:
            with pytest.raises(Fenced):
                await working
            assert "user-7" not in everything(url)
        else:
            await working
            assert contents(memory.store) == ["slow"]


async def test_what_is_said_after_the_forgetting_is_kept(url: str) -> None:
    async with Memory(url, forget_also=[Buffer("messages", fence=90)]) as memory:
        await memory.absorb(said("before", fence=40))
        await memory.forget("user-7")

        await memory.absorb(said("after", id="batch-2", fence=91))

        assert contents(memory.store) == ["after"]


async def test_a_buffer_that_was_not_named_refuses_at_least_those_who_have_written(url: str) -> None:
    first, second = Says("first"), Says("second")
    second.go.clear()
    async with Memory(url, agents=[first, second]) as memory:
        # Given a worker of whose agents one has written
        working = asyncio.create_task(memory.absorb(said("x", fence=40)))
        while not contents(memory.store):
            await asyncio.sleep(0.005)

        await memory.forget("user-7")
        second.go.set()

        # expect the other to be refused, and the next fence to pass
        with pytest.raises(Fenced):
            await working
        await memory.absorb(said("y", fence=41))
        assert sorted(contents(memory.store)) == ["first", "second"]


async def test_a_newer_fence_than_the_forgettings_stays(url: str) -> None:
    # Given a worker that was granted a fence after the buffer forgot, and has written already
    async with Memory(url) as memory:
        memory.store.forget_also = (
            Buffer("messages", fence=90, when=lambda: memory.store.commit(said(fence=95), "x", [NewEntry("a", "b")])),
        )
        await memory.forget("user-7")

        # expect that this one is not taken back
        with pytest.raises(Fenced):
            await memory.absorb(said("y", fence=94))


def test_a_commit_that_is_under_way_is_waited_for_and_its_rows_are_removed(url: str) -> None:
    inside, go = threading.Event(), threading.Event()

    class Slow(Store):
        def _claim(self, connection: Any, origin: Any, agent: str) -> int | None:
            inside.set()
            assert go.wait(20)
            return super()._claim(connection, origin, agent)

    # Given a worker that has passed the check of its fence and not yet committed
    with (
        Slow(url) as slow,
        Store(url, forget_also=[Buffer("messages", fence=90)]) as store,
        ThreadPoolExecutor(2) as pool,
    ):
        committing = pool.submit(slow.commit, said(fence=40), "x", [NewEntry("semantic", "tea")])
        assert inside.wait(20)

        # when the user is forgotten meanwhile
        forgetting = pool.submit(store.forget, "user-7")
        go.set()

        # expect its entry to be gone too
        assert committing.result(30) is True
        assert forgetting.result(30) == Forgotten(entries=1, checkpoints=1)
        assert contents(store) == []


@pytest.mark.parametrize("answer", [None, True, "forgotten", 0, -5, 1.5, ["x"]])
async def test_an_answer_that_is_no_fence_is_no_fence(sqlite_url: str, answer: Any) -> None:
    async with Memory(sqlite_url, forget_also=[Buffer("messages", fence=answer)]) as memory:
        await memory.forget("user-7")

        assert rows(sqlite_url, "select * from holdfast_memory_fences") == []


async def test_bad_use_is_told_before_anything_is_forgotten(sqlite_url: str) -> None:
    buffer = Buffer("messages")
    async with Memory(sqlite_url, forget_also=[buffer]) as memory:
        with pytest.raises(InvalidId):
            await memory.forget("")
    assert buffer.forgot == []
    with pytest.raises(ConfigurationError, match="forget_also"):
        Memory(sqlite_url, forget_also=["messages"])
    with Store(sqlite_url) as store:
        with pytest.raises(InvalidId):
            store.forget(5)
        with pytest.raises(ConfigurationError, match="fences"):
            store.erase("user-7", {"messages": 2**63})
