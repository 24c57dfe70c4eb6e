"""Several agents for a batch: side by side, each checkpointed, each failing alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from memory_help import Batch, Message, Pair, Says, contents, said

from holdfast.errors import ConfigurationError, Fenced, HoldfastError, InvalidPayload, LeaseLost
from holdfast.memory import Memory, NewEntry, Store, Verbatim
from support.conditions import until

# -- checkpoints ------------------------------------------------------------------------------------------------------


async def test_each_agent_is_committed_as_it_finishes(url: str) -> None:
    quick, slow = Says("quick"), Says("slow")
    slow.go.clear()
    async with Memory(url, agents=[slow, quick]) as memory:
        # Given two agents of which one is still at work
        working = asyncio.create_task(memory.absorb(said("x")))
        await slow.begun.wait()

        # expect the other's entry before that
        await until(lambda: memory.store.done(said()) == {"quick"})
        assert contents(memory.store) == ["quick"]
        slow.go.set()
        await working
        assert sorted(contents(memory.store)) == ["quick", "slow"]


async def test_a_redelivery_runs_only_the_unfinished(url: str) -> None:
    good, bad = Says("good"), Says("bad")
    bad.fails = RuntimeError("no luck")
    async with Memory(url, agents=[bad, good]) as memory:
        # Given a batch with which one agent failed
        with pytest.raises(RuntimeError, match="no luck"):
            await memory.absorb(said("x"))
        assert contents(memory.store) == ["good"]

        # when it is delivered again
        bad.fails = None
        await memory.absorb(said("x", fence=2, attempt=2))

        # expect that the other one did not run again
        assert (good.runs, bad.runs) == (1, 2)
        assert sorted(contents(memory.store)) == ["bad", "good"]


async def test_the_store_is_asked_once_what_is_done(sqlite_url: str) -> None:
    async with Memory(sqlite_url, agents=[Says("a"), Says("b"), Says("c")]) as memory:
        asked = []
        done = memory.store.done
        memory.store.done = lambda batch: asked.append(batch) or done(batch)

        await memory.absorb(said("x"))

        assert len(asked) == 1


async def test_agents_run_side_by_side(sqlite_url: str) -> None:
    # Given two agents that wait for each other
    one, other = Says("one"), Says("other")
    one.go, other.go = other.begun, one.begun
    async with Memory(sqlite_url, agents=[one, other]) as memory:
        await asyncio.wait_for(memory.absorb(said("x")), 20)

        assert len(contents(memory.store)) == 2


# -- failures ---------------------------------------------------------------------------------------------------------


async def test_the_first_failure_is_raised_and_the_others_are_its_notes(sqlite_url: str) -> None:
    agents = [Says("a"), Says("b"), Says("c")]
    agents[0].fails, agents[2].fails = RuntimeError("first"), ValueError("third")
    agents[2].go = agents[1].begun
    async with Memory(sqlite_url, agents=agents) as memory:
        with pytest.raises(RuntimeError, match="first") as failed:
            await memory.absorb(said("x"))

        assert failed.value.__notes__ == [
            "raised for the memory agent 'a'",
            "the memory agent 'c' failed too: ValueError: third",
        ]
        assert contents(memory.store) == ["b"]


@pytest.mark.parametrize("lost", [LeaseLost("stop"), Fenced("stop")], ids=lambda error: type(error).__name__)
async def test_a_lost_batch_is_told_before_other_failures_and_stops_the_rest(sqlite_url: str, lost: Any) -> None:
    agents = [Says("a"), Says("b"), Says("c")]
    agents[0].fails, agents[1].fails = RuntimeError("first"), lost
    agents[2].go.clear()
    async with Memory(sqlite_url, agents=agents) as memory:
        with pytest.raises(type(lost)) as failed:
            await asyncio.wait_for(memory.absorb(said("x")), 20)

        assert failed.value is lost
        assert agents[2].cancelled == 1
        assert contents(memory.store) == []


async def test_an_agent_that_cancels_itself_does_not_look_like_a_cancelled_caller(sqlite_url: str) -> None:
    agent = Says("odd")
    agent.fails = asyncio.CancelledError()
    async with Memory(sqlite_url, agents=[agent]) as memory:
        with pytest.raises(HoldfastError, match="cancelled itself"):
            await memory.absorb(said("x"))


@pytest.mark.parametrize(
    "answer",
    [
        None, "text", 5, ["text"], [NewEntry("Bad Kind", "x")], [NewEntry("semantic", 5)],
        [NewEntry("semantic", "x", at=float("nan"))], [NewEntry("semantic", "x", at="now")],
    ],
)  # fmt: skip
async def test_an_answer_that_is_no_list_of_entries_is_refused(sqlite_url: str, answer: Any) -> None:
    class Odd:
        name = "odd"

        async def run(self, batch: Any) -> Any:
            return answer

    async with Memory(sqlite_url, agents=[Odd()]) as memory:
        with pytest.raises(ConfigurationError):
            await memory.absorb(said("x"))
        assert memory.store.done(said()) == frozenset()


@pytest.mark.parametrize("data", [float("nan"), float("inf"), object(), {"a": [{1, 2}]}])
async def test_data_that_is_no_json_is_refused(sqlite_url: str, data: Any) -> None:
    async with Memory(sqlite_url) as memory:
        with pytest.raises(InvalidPayload):
            await memory.absorb(said({"text": "x", "more": data}))
        assert contents(memory.store) == []


async def test_data_that_is_nested_too_deeply_is_refused(sqlite_url: str) -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    async with Memory(sqlite_url) as memory:
        with pytest.raises(InvalidPayload, match="nest the data less deeply"):
            await memory.absorb(said(deep))
    while isinstance(deep, list):  # taken apart step by step: freeing it at once would be as deep
        deep = deep[0]


# -- being cancelled --------------------------------------------------------------------------------------------------


async def test_cancelling_cancels_the_agents_and_commits_nothing_more(sqlite_url: str) -> None:
    agents = [Says("a"), Says("b")]
    for agent in agents:
        agent.go.clear()
    async with Memory(sqlite_url, agents=agents) as memory:
        working = asyncio.create_task(memory.absorb(said("x")))
        await agents[1].begun.wait()

        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

        assert [agent.cancelled for agent in agents] == [1, 1]
        assert contents(memory.store) == []


class Halted(Store):
    """Its transactions stop after their check of the fence."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.inside, self.go = threading.Event(), threading.Event()

    def _check_fence(self, connection: Any, origin: Any) -> None:
        super()._check_fence(connection, origin)
        self.inside.set()
        assert self.go.wait(20)


class Headstrong(Halted):
    """Does not ask whether anybody still wants it."""

    def commit(self, *args: Any, unless: Callable[[], bool] | None = None) -> bool:
        return super().commit(*args)


@pytest.mark.parametrize(("kind", "left"), [(Halted, []), (Headstrong, ["a"])])
async def test_cancelled_in_the_middle_of_a_commit(url: str, kind: type[Halted], left: list[str]) -> None:
    async with Memory(url) as memory:
        memory.store.close()
        store = memory.store = kind(url, agents=[Says("a")]).open()
        # Given a transaction that is under way in its thread
        working = asyncio.create_task(memory.absorb(said("x")))
        await until(store.inside.is_set)

        # when the caller is cancelled, twice
        for _ in range(2):
            working.cancel()
            await asyncio.sleep(0)
        # expect it to end only with the transaction, which is rolled back (and committed by a store that does not ask)
        _, waiting = await asyncio.wait([working], timeout=0.05)
        assert waiting
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert contents(store) == left


# -- plain functions --------------------------------------------------------------------------------------------------


async def test_a_plain_run_goes_into_a_thread(sqlite_url: str) -> None:
    class Plain:
        name = "plain"

        def run(self, batch: Any) -> list[NewEntry]:
            self.thread = threading.current_thread()
            return [NewEntry("semantic", batch.messages[0].data)]

    agent = Plain()
    async with Memory(sqlite_url, agents=[agent]) as memory:
        await memory.absorb(said("tea"))

        assert contents(memory.store) == ["tea"]
        assert agent.thread is not threading.current_thread()


def test_the_blocking_store_runs_async_agents_too(sqlite_url: str) -> None:
    with Store(sqlite_url, agents=[Says("a"), Says("b")]) as store:
        store.absorb(said("x"))

        assert sorted(contents(store)) == ["a", "b"]


async def test_the_blocking_store_refuses_to_stop_a_loop(sqlite_url: str) -> None:
    with Store(sqlite_url) as store, pytest.raises(ConfigurationError, match="use Memory"):
        store.absorb(said("x"))


class Nameless:
    def run(self, batch: Any) -> list[NewEntry]:
        return []


class Idle:
    name = "idle"


@pytest.mark.parametrize(
    ("agents", "complaint"),
    [
        ([], "at least one"),
        ([Verbatim(), Verbatim("semantic")], "two are called 'verbatim'"),
        ([Nameless()], "name the agent"),
        ([Verbatim(name="a b")], "name the agent"),
        ([Verbatim(name="")], "name the agent"),
        ([Verbatim(name="a" * 65)], "name the agent"),
        ([Idle()], "a method run"),
    ],
)
def test_agents_that_cannot_work_are_refused(agents: list[Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Memory("sqlite://", agents=agents)


# -- verbatim ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "content", "kept"),
    [
        ("plain", "plain", "plain"),
        ({"text": "from text", "content": "not this"}, "from text", {"text": "from text", "content": "not this"}),
        ({"content": "from content"}, "from content", {"content": "from content"}),
        ({"text": 5, "b": 1}, '{"text":5,"b":1}', {"text": 5, "b": 1}),
        ([1, None, True, "ü"], '[1,null,true,"ü"]', [1, None, True, "ü"]),
        (None, "null", None),
        (2**70, str(2**70), 2**70),
        (b"abc", "[3 bytes]", {"$bytes": "YWJj"}),
        ({"image": b"abc"}, '{"image":"[3 bytes]"}', {"image": {"$bytes": "YWJj"}}),
        ("", "", ""),
        ("nul \x00 half \ud800", "nul \ufffd half \ufffd", "nul \x00 half \ud800"),
        ("'; drop table holdfast_memory_entries; --", "'; drop table holdfast_memory_entries; --",
         "'; drop table holdfast_memory_entries; --"),
    ],
)  # fmt: skip
async def test_verbatim_keeps_what_was_said(url: str, data: Any, content: str, kept: Any) -> None:
    async with Memory(url) as memory:
        await memory.absorb(said(data))

        (entry,) = await memory.recall("user-7")

        assert entry.content == content
        assert entry.data == {"id": "m0", "data": kept}


async def test_verbatim_keeps_pairs_and_attachments(url: str) -> None:
    batch = Batch(
        [Message("m1", "look", 5.0, {"photo": {"url": "x"}, "raw": b"abc"})],
        pairs=[Pair("hi", {"text": "hello"}, 4.0)], fence=7,
    )  # fmt: skip
    async with Memory(url, agents=[Verbatim("diary", name="words")]) as memory:
        await memory.absorb(batch)

        message, pair = await memory.recall("user-7")

        assert message.data == {"id": "m1", "data": "look",
                                "attachments": {"photo": {"url": "x"}, "raw": {"$bytes": "YWJj"}}}  # fmt: skip
        assert (message.user, message.kind, message.batch) == ("user-7", "diary", "batch-1")
        assert (message.agent, message.position, message.fence, message.at) == ("words", 0, 7, 5.0)
        assert (pair.content, pair.position, pair.at) == ("user: hi\nassistant: hello", 1, 4.0)
        assert pair.data == {"user": "hi", "assistant": {"text": "hello"}}


async def test_an_entry_without_a_time_has_that_of_the_newest_message(url: str) -> None:
    async with Memory(url, agents=[Says("a")]) as memory:
        await memory.absorb(said("x", "y", at=50.0))

        assert (await memory.recall("user-7"))[0].at == 51.0


async def test_an_entry_without_any_time_has_that_of_the_database(url: str) -> None:
    async with Memory(url, agents=[Says("a")]) as memory:
        await memory.absorb(said())
        (checkpoint,) = (await memory.export("user-7"))["checkpoints"]

        assert (await memory.recall("user-7"))[0].at == pytest.approx(checkpoint["at"], abs=10)
        assert checkpoint["at"] > 1.7e9
