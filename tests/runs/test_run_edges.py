"""Where several things meet: full workers, callbacks that raise, newer versions, equal inputs, poisoned archives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import redis

from holdfast import Event, Holdfast, Run, RunActive, RunMismatch, TooLarge, Unavailable
from holdfast.runs import archiver, flows, owning
from support.backends import Backend, Backends
from support.conditions import until

BASE = "hf:{runs.agent}:"


@pytest.fixture
def server(valkey: Backend) -> Iterator[redis.Redis]:
    client = valkey.owner.client()
    yield client
    client.close()


@pytest.fixture
async def hf(valkey: Backend) -> AsyncIterator[Holdfast]:
    async with Holdfast(valkey.url) as client:
        yield client


async def test_a_full_worker_is_not_woken_for_what_another_could_take(hf: Holdfast, server: redis.Redis):
    """It was idle, looked by itself, and is full now: the next run is somebody else's."""
    agent = hf.runs("agent")
    core, spec, home = hf._core, agent._spec, hf._open.home()

    async def look(name: str) -> owning.Look:
        return await hf._open.run(owning.take(core, spec, f"{core.client_id}.{name}", 1, 1, 30.0, home))

    # Given one that waits in the list of the idle, and a run for which nobody was woken
    await agent.start("a")
    server.zadd(f"{BASE}idle", {f"{core.client_id}.one": 1})
    server.expire(f"{BASE}idle", 60)
    # when it takes that
    looked = await look("one")
    assert [given.place.run for given in looked.given] == ["a"]
    # expect it not to be in that list any more
    assert looked.idle == 0


async def test_a_callback_that_raises_stops_nothing(hf: Holdfast, caplog: pytest.LogCaptureFixture):
    agent = hf.runs("agent", lease=0.6)
    told: list[str] = []

    def bad() -> None:
        raise ZeroDivisionError("mine")

    first, second = await agent.claim("a"), await agent.claim("b")
    first.on_stop(bad)
    first.on_stop(lambda: told.append("a"))
    with caplog.at_level(logging.ERROR, logger="holdfast"):
        hf._core.mailbox.on_stop = lambda token, reason: None  # only the renewal says it
        await agent.stop("a", "enough")
        await until(lambda: told == ["a"])
    assert "a callback about a lease failed" in caplog.text
    # both are renewed as ever
    before = second._given.hold.deadline
    await until(lambda: second._given.hold.deadline > before)
    assert not first.lost


async def test_equal_inputs_are_the_same_in_any_order(hf: Holdfast):
    agent = hf.runs("agent")
    await agent.start("r", {"a": 1, "b": {"c": 2, "d": [3]}})
    assert (await agent.start("r", {"b": {"d": [3], "c": 2}, "a": 1})).id == "r"
    with pytest.raises(RunMismatch):
        await agent.start("r", {"a": 1, "b": {"c": 2, "d": [4]}})


async def test_steps_are_bounded_and_events_are_kept(hf: Holdfast, server: redis.Redis):
    agent = hf.runs("agent", emit_delay=60)
    async with await agent.claim("r") as run:
        await run.step("first", lambda: 1)
        server.hset(f"{BASE}s:r", mapping={f"step-{number}": b"\x01\x01" for number in range(999)})
        await run.emit("before")
        with pytest.raises(TooLarge, match="keep what belongs together in one step"):
            await run.step("one more", lambda: 2)
        await run.emit("after")
    assert [event.data for event in [e async for e in agent.events("r")][:2]] == ["before", "after"]


async def test_what_was_asked_for_is_not_in_a_repr(hf: Holdfast):
    agent = hf.runs("agent")
    run = await agent.start("r", {"prompt": "sw0rdfish"})
    async with await agent.claim("r") as active:
        await active.emit("sw0rdfish")
        active.result = "sw0rdfish"
    events = [event async for event in agent.events("r")]
    shown = repr([run, await agent.get("r"), events, active])
    assert events[0].data == "sw0rdfish"
    assert "sw0rdfish" not in shown


async def test_a_record_of_a_newer_version_keeps_nobody_else_from_working(hf: Holdfast, server: redis.Redis):
    agent = hf.runs("agent")
    for name in ("new", "old"):
        await agent.start(name)
    meta = server.hget(f"{BASE}r:new", "m")
    server.hset(f"{BASE}r:new", "m", b"\x02" + meta[1:])

    # when a worker of this version has room for one
    looks = [await _take_one(hf, agent) for _ in range(2)]

    # expect it to get what it can read, and the other one to be left for a newer worker
    assert sorted(name for look in looks for name in look) == ["old"]
    assert server.zscore(f"{BASE}due", "new") is not None
    assert server.hget(f"{BASE}r:new", "m")[:1] == b"\x02"
    assert [run.id for run in await agent.list(state="running")] == ["old"]


async def _take_one(hf: Holdfast, agent: Any) -> list[str]:
    core = hf._core
    look = await hf._open.run(owning.take(core, agent._spec, core.new_token(), 1, 1, 30.0, hf._open.home()))
    return [given.place.run for given in look.given]


async def test_one_run_that_cannot_be_archived_holds_up_no_other(hf: Holdfast, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archiver, "AGAIN", 0.2)
    monkeypatch.setattr(archiver, "PAUSE", 0.05)
    kept: list[str] = []
    refused: list[str] = []

    class Picky:
        async def keep(self, collection: str, run: Run, events: Sequence[Event]) -> None:
            if run.id == "bad":
                refused.append(str(run.id))
                raise ValueError("not this one")
            kept.append(str(run.id))

    agent = hf.runs("agent", archive=True)
    hf.archive(agent, Picky())
    for name in ("bad", "one", "two"):
        async with await agent.claim(name):
            pass
    working = asyncio.create_task(hf.work())
    await until(lambda: sorted(kept) == ["one", "two"])
    await until(lambda: len(refused) >= 2, what="another try of the one that was refused")
    hf.stop_work()
    await working


class Everything:
    def __contains__(self, _: object) -> bool:
        return True


@pytest.mark.parametrize("guarded", [True, False], ids=["as it is", "without the key that never is"])
async def test_a_collection_is_not_used_while_its_slot_moves(
    backends: Backends, guarded: bool, monkeypatch: pytest.MonkeyPatch
):
    """On the new node the key's slot would seem free: its index has not arrived there."""
    backend = backends.get("cluster")
    backend.flush()
    cluster = backend.owner
    slot = int(cluster.nodes[0].call("CLUSTER", "KEYSLOT", "{runs.agent}"))
    source = cluster.node_for_slot(slot)
    target = next(one for one in map(cluster.node_for_slot, (0, 8000, 16383)) if one is not source)
    if not guarded:
        monkeypatch.setattr(flows, "WHERE_KEYS_ARE_COUNTED", Everything())
    async with Holdfast(cluster.url, retry_for=0.3) as hf:
        agent = hf.runs("agent")
        async with await agent.claim("a", key="k"):
            # Given a slot that has begun to move, with nothing there yet
            cluster.begin_migration(slot, target)
            try:
                # when a second run of the key is started, expect to be told to try later; not to get a second slot
                if guarded:
                    with pytest.raises(Unavailable):
                        await agent.start("b", key="k")
                else:
                    assert (await agent.start("b", key="k")).state == "queued"
                    target.call("FLUSHALL")  # or its indexes would stand in the way of those that come
            finally:
                cluster.finish_migration(slot)
            with pytest.raises(RunActive):
                await agent.start("b", key="k")
