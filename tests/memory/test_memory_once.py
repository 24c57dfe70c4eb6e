"""A batch has its effect once for each agent, and a worker that was paused has none. And what happens without that."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from memory_help import Batch, Says, WithoutFence, contents, drop_unique_key, rows, said

from holdfast.errors import ConfigurationError, Fenced, LeaseLost
from holdfast.memory import Memory, NewEntry, Store, Verbatim
from support.conditions import until_blocking
from support.nursery import Forked

ENTRY = [NewEntry("episodic", "green tea")]


# -- one after the other ----------------------------------------------------------------------------------------------


async def test_a_batch_delivered_again_changes_nothing(url: str) -> None:
    async with Memory(url) as memory:
        # Given a batch that was absorbed and whose acknowledgement was lost
        batch = said("hello", "good bye")
        await memory.absorb(batch)
        before = await memory.export("user-7")

        # when it comes again, with a higher attempt and fence
        await memory.absorb(replace(batch, attempt=2, fence=9))

        # expect what there was
        assert await memory.export("user-7") == before
        assert [entry["content"] for entry in before["entries"]] == ["hello", "good bye"]


def test_a_worker_that_was_paused_writes_nothing(url: str) -> None:
    with Store(url) as store:
        # Given a newer worker that has written for this user
        store.absorb(said("new", id="batch-2", fence=3))

        # when an older one comes back with a batch that nobody has absorbed
        with pytest.raises(Fenced) as refused:
            store.absorb(said("old", id="batch-1", fence=2))

        # expect nothing of it, not even a checkpoint
        assert refused.value.fence == 2
        assert contents(store) == ["new"]
        assert store.done(said(id="batch-1")) == frozenset()
        # and that neither the user nor the buffer stands in the error
        assert "user-7" not in str(refused.value)


def test_without_the_fence_the_paused_worker_writes(url: str) -> None:
    with Store(url) as store, WithoutFence(url) as unsafe:
        store.absorb(said("new", id="batch-2", fence=3))

        unsafe.absorb(said("old", id="batch-1", fence=2))

        assert contents(store) == ["old", "new"] or contents(store) == ["new", "old"]


def test_fences_of_other_users_and_buffers_do_not_count(url: str) -> None:
    with Store(url) as store:
        store.absorb(said("a", fence=50))

        store.absorb(said("b", key="user-8", fence=2))
        store.absorb(said("c", buffer="others", fence=2))

        assert contents(store, "user-8") == ["b"]
        assert sorted(contents(store)) == ["a", "c"]


def test_names_that_could_be_confused_are_told_apart(url: str) -> None:
    # Given names whose plain joining would be the same
    with Store(url) as store:
        store.absorb(said("1", buffer="a", key="b:c", fence=9))
        store.absorb(said("2", buffer="a:b", key="c", fence=1))
        store.absorb(said("3", buffer="a", key=b"b\xff", fence=1))
        store.absorb(said("4", buffer="a", key="b\x00", fence=1))

        assert [contents(store, user) for user in ("b:c", "c", b"b\xff", "b\x00", "b")] == [
            ["1"],
            ["2"],
            ["3"],
            ["4"],
            [],
        ]


def test_text_and_bytes_of_one_user_are_one(url: str) -> None:
    with Store(url) as store:
        store.absorb(said("tea", key="jürgen"))

        (entry,) = store.recall("jürgen".encode(), "tea")

        assert entry.user == "jürgen"


def test_the_longest_names_fit(url: str) -> None:
    # Given the longest user there can be, all of it escaped, and the longest names
    batch = said("tea", key=b"\xff" * 512, buffer="b" * 255, id="i" * 255)
    with Store(url, agents=[Verbatim(name="a" * 64)]) as store:
        store.absorb(batch)

        assert store.done(batch) == {"a" * 64}
        assert [entry.content for entry in store.recall(b"\xff" * 512, "tea")] == ["tea"]


@pytest.mark.parametrize(
    "fields",
    [
        {"fence": -1}, {"fence": 2**63}, {"fence": True}, {"fence": "1"}, {"id": ""}, {"id": "i" * 256},
        {"buffer": "b" * 256}, {"key": ""}, {"key": "k" * 513},
    ],
)  # fmt: skip
def test_a_batch_that_no_absorber_hands_out_is_refused(sqlite_url: str, fields: dict[str, Any]) -> None:
    with Store(sqlite_url) as store, pytest.raises(ConfigurationError):
        store.absorb(said("x", **fields))


def test_all_or_nothing(url: str) -> None:
    # Given a database that refuses the second entry
    with Store(url) as store:

        class Breaks(Store):
            def _row(self, origin: Any, agent: str, position: int, entry: NewEntry) -> dict[str, Any]:
                return super()._row(origin, agent, 0, entry)  # two entries in one place

        with Breaks(url) as broken, pytest.raises(Exception, match=r"(?i)unique"):
            broken.commit(said(), "verbatim", ENTRY * 2)

        # expect neither the first entry, nor the checkpoint, nor the fence
        assert store.export("user-7")["checkpoints"] == []
        assert contents(store) == []
        assert rows(url, "select * from holdfast_memory_fences") == []


def test_a_lost_lease_commits_nothing(url: str) -> None:
    with Store(url) as store:

        class Loses:
            name = "loses"

            def run(self, batch: Any) -> list[NewEntry]:
                batch.lost = True
                return ENTRY

        store.agents = (Loses(),)
        with pytest.raises(LeaseLost):
            store.absorb(said("x"))

        assert contents(store) == []


async def test_a_lost_lease_runs_nothing(sqlite_url: str) -> None:
    agent = Says("a")
    async with Memory(sqlite_url, agents=[agent]) as memory:
        with pytest.raises(LeaseLost):
            await memory.absorb(said("x", lost=True))

    assert agent.runs == 0


# -- at the same time: threads ----------------------------------------------------------------------------------------

ROUNDS = [f"batch-{number}" for number in range(15)]


def race_of_threads(url: str, fences: list[int]) -> Counter[str]:
    """Workers with these fences commit the same batches at the same moment. How often each outcome came."""
    barrier = threading.Barrier(len(fences))
    stores = [Store(url).open() for _ in fences]

    def work(store: Store, fence: int) -> list[str]:
        came = []
        for number, name in enumerate(ROUNDS):
            barrier.wait(30)
            batch = said(name, id=name, fence=fence + 100 * number)
            try:
                came.append("written" if store.commit(batch, "verbatim", ENTRY) else "done already")
            except Fenced:
                came.append("fenced")
        return came

    try:
        with ThreadPoolExecutor(len(fences)) as pool:
            return Counter(outcome for outcomes in pool.map(work, stores, fences) for outcome in outcomes)
    finally:
        for store in stores:
            store.close()


@pytest.mark.parametrize("fences", [[1, 1, 1, 1], [1, 2, 3, 4]], ids=["one fence", "each its own"])
def test_workers_in_threads_have_one_effect(url: str, fences: list[int]) -> None:
    with Store(url) as store:
        came = race_of_threads(url, fences)

        assert came["written"] == len(ROUNDS)
        assert came.total() == len(ROUNDS) * len(fences)
        assert len(contents(store)) == len(ROUNDS)


def test_without_the_unique_key_workers_in_threads_have_several(url: str) -> None:
    with Store(url) as store:
        drop_unique_key(url)

        race_of_threads(url, [1, 1, 1, 1])

        assert len(contents(store)) > len(ROUNDS)


def test_an_older_worker_waits_for_the_newer_and_is_refused(url: str) -> None:
    """Two commits at the same moment: the row of the fence is locked until the first is through."""
    inside, go = threading.Event(), threading.Event()

    class Slow(Store):
        def _check_fence(self, connection: Any, origin: Any) -> None:
            super()._check_fence(connection, origin)
            inside.set()
            assert go.wait(20)

    # Given a newer worker in the middle of its transaction
    with Slow(url) as newer, Store(url) as older, ThreadPoolExecutor(2) as pool:
        first = pool.submit(newer.commit, said("new", id="batch-2", fence=5), "verbatim", ENTRY)
        assert inside.wait(20)
        # when an older one commits meanwhile
        second = pool.submit(older.commit, said("old", id="batch-1", fence=4), "verbatim", ENTRY)
        if url.startswith("postgresql"):
            stuck = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
            until_blocking(lambda: rows(url, stuck), what="the older one waits")
        assert not second.done()
        go.set()

        # expect it to be refused, although it looked at the fence before the newer one was through
        assert first.result(30) is True
        with pytest.raises(Fenced):
            second.result(30)
        assert len(contents(older)) == 1


# -- at the same time: processes --------------------------------------------------------------------------------------


class Worker:
    """A process with a memory."""

    def __init__(self, url: str, *options: str) -> None:
        self._process = Forked(
            [sys.executable, "-W", "error", str(Path(__file__).with_name("memory_worker.py")), url, *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def tell(self, order: Any) -> None:
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        line = self._lines.get(timeout=60)
        assert line, "the worker ended"
        return json.loads(line)

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def __enter__(self) -> Self:
        assert self.hear() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._reader.join(5)


def race_of_processes(url: str) -> Counter[str]:
    orders = [[f"batch-{number}", number + 1] for number in range(40)]
    # They also make the tables at the same time.
    one, other = Worker(url), Worker(url)
    with one, other:
        for worker in (one, other):
            worker.tell({"commit": orders})
        return Counter([*one.hear(), *other.hear()])


def test_workers_in_processes_have_one_effect(url: str) -> None:
    came = race_of_processes(url)

    assert came["written"] == 40
    assert came.total() == 80
    with Store(url) as store:
        assert len(contents(store)) == 80, "two messages a batch"


def test_without_the_unique_key_workers_in_processes_have_several(url: str) -> None:
    with Store(url) as store:
        drop_unique_key(url)

        came = race_of_processes(url)

        assert came["written"] > 40
        assert len(contents(store)) == 2 * came["written"]


@pytest.mark.parametrize(("option", "outcome", "left"), [("", "Fenced", ["new"]),
                                                         ("without-fence", "absorbed", None)])  # fmt: skip
def test_a_process_that_was_stopped_comes_back(url: str, option: str, outcome: str, left: list[str] | None) -> None:
    with Store(url) as store, Worker(url, option) as paused:
        # Given a process that is stopped while its agent works
        paused.tell({"absorb": ["batch-1", 4]})
        assert paused.hear() == "running"
        paused.signal(signal.SIGSTOP)
        # when a newer worker absorbs another batch of this user, and the process goes on
        store.absorb(said("new", id="batch-2", fence=5))
        paused.signal(signal.SIGCONT)
        paused.tell("go on")

        # expect it to be refused; without the check it writes
        assert paused.hear() == outcome
        assert contents(store) == (left or ["new", "first of batch-1", "second of batch-1"])


def test_a_message_that_comes_again_in_another_batch_is_kept_once(url: str) -> None:
    # Given a batch that was absorbed, and a failover that forgot that it was taken
    with Store(url) as store:
        store.absorb(said("a", "b", id="1", fence=1))

        # when its messages come again in another batch, with one more
        again = Batch([*said("a", "b", id="1").messages, *said("c", id="2").messages], id="2", fence=2)
        store.absorb(again)

        # expect each once
        assert sorted(contents(store)) == ["a", "b", "c"]


def test_without_the_key_of_the_message_it_is_kept_twice(url: str) -> None:
    class Careless(Store):
        def _row(self, origin: Any, agent: str, position: int, entry: NewEntry) -> dict[str, Any]:
            return {**super()._row(origin, agent, position, entry), "source": None}

    with Careless(url) as store:
        store.absorb(said("a", id="1", fence=1))
        store.absorb(Batch(said("a", id="1").messages, id="2", fence=2))

        assert contents(store) == ["a", "a"]
