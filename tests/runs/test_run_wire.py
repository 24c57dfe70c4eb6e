"""Faults on the wire, through a real proxy: every reader sees the stored log, each event once and in order; a request
to stop arrives; every run ends once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from run_fault_world import BASE
from run_model_audit import View

from holdfast import Event, Holdfast, HoldfastError, Run, RunStopped
from holdfast.runs import worker
from holdfast.runs.worker import RunWorker
from holdfast.testing import FaultProxy
from support.backends import Backend
from support.conditions import until

QUICK = {"call_timeout": 0.3, "retry_for": 5.0}


@pytest.fixture
def server(valkey: Backend) -> Iterator[redis.Redis]:
    client = valkey.owner.client()
    yield client
    client.flushall()
    client.close()


@pytest.fixture
def proxy(valkey: Backend) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", valkey.owner.port) as made:
        yield made
        made.heal()


@pytest.fixture
async def direct(valkey: Backend, server: redis.Redis) -> AsyncIterator[Holdfast]:
    async with Holdfast(valkey.url, **QUICK) as hf:
        yield hf


class Follower:
    """Reads one run to its end; when an error reaches it, it comes back with the last id it saw."""

    def __init__(self, hf: Holdfast, run: str) -> None:
        self._agent, self._run = hf.runs("agent"), run
        self.seen: list[Event] = []
        self.returns = 0
        self.task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while not (self.seen and self.seen[-1].kind == "end"):
            with contextlib.suppress(HoldfastError):
                async for event in self._agent.events(self._run, self.seen[-1].id if self.seen else None):
                    self.seen.append(event)
            self.returns += 1

    async def check(self, view: View, within: float = 15) -> None:
        await asyncio.wait_for(self.task, within)
        ids = [event.id for event in view.events(self._run)]
        assert [event.id for event in self.seen[:-1]] == ids, "not the stored log, each event once"
        assert [event.data for event in self.seen if event.kind == "data"] == view.data(self._run)
        assert self.seen[-1].data["state"] == view.runs[self._run].state


def no_reader_left(hf: Holdfast) -> None:
    core = hf._core
    assert not core.feeds
    assert not core.mailbox.feeds
    assert not core.mailbox._slots


def trouble(proxy: FaultProxy, chance: random.Random) -> None:
    match chance.randrange(4):
        case 0:
            proxy.cut()
        case 1:
            proxy.drop_replies(chance.randrange(1, 5), match=b"EVALSHA")
        case 2:
            proxy.cut_after_requests(chance.randrange(1, 8), match=b"EVALSHA")
        case 3:
            proxy.drop_replies(1, match=b"EVALSHA", cut=False)


async def emit_all(run: Any, count: int, done: list[int]) -> None:
    """Numbers in order, as a model's tokens come: some waited for, some saved, most not."""
    for number in range(count):
        await run.emit(number)
        done[0] += 1
        if number % 50 == 49:
            await run.checkpoint(number)
        elif number % 10 == 9:
            await run.flush()


@pytest.mark.parametrize("schedule", [1, 2, 3])
async def test_emits_and_reads_through_losses_and_cuts(
    direct: Holdfast, server: redis.Redis, proxy: FaultProxy, schedule: int
):
    """Given owners and readers whose connections are cut and whose replies are lost, when the owners are done, expect
    all that was emitted in the log, once and in order, and each reader to have seen just that."""
    chance = random.Random(schedule)
    async with Holdfast(proxy.url, **QUICK) as hf:
        agent = hf.runs("agent", lease=8, emit_delay=0.002)
        owned = [await agent.claim(f"run-{number}") for number in range(4)]
        readers = [Follower(client, f"run-{n}") for n in range(4) for client in (hf, hf, direct)]
        done = [0]
        owners = [asyncio.create_task(emit_all(run, 300, done)) for run in owned]
        for step in range(1, 21):
            trouble(proxy, chance)
            await until(lambda n=step: done[0] >= 55 * n or all(o.done() for o in owners), within=30)
        proxy.heal()
        for owner in owners:
            await asyncio.wait_for(owner, 20)
        for run in owned:
            assert await run._settle("completed", "") == "completed"
        assert proxy.connections > 10
        view = View(server, BASE)
        view.check()
        for run in owned:
            assert view.data(str(run.id)) == list(range(300))
        for reader in readers:
            await reader.check(view)
        no_reader_left(hf)
    no_reader_left(direct)


async def test_readers_whose_subscription_is_cut_again_and_again(
    direct: Holdfast, server: redis.Redis, proxy: FaultProxy
):
    run = await direct.runs("agent", emit_delay=0).claim("run")
    async with Holdfast(proxy.url, **QUICK) as hf:
        readers = [Follower(hf, "run") for _ in range(10)]
        channel = f"{BASE}ev:run"
        for number in range(200):
            await run.emit(number)
            if number % 10 == 5:
                # between two cuts they listen and get on, or nothing would be tested but the last stretch
                await until(lambda: server.pubsub_shardnumsub(channel)[0][1] == 1)
                await run.flush()
                await until(lambda n=number: all(len(reader.seen) == n + 1 for reader in readers))
                proxy.cut()
        assert await run._settle("completed", "") == "completed"
        assert proxy.connections > 20
        view = View(server, BASE)
        for reader in readers:
            await reader.check(view)
        no_reader_left(hf)


@pytest.mark.parametrize("match", [b"SSUBSCRIBE", None], ids=["only signals", "everything"])
async def test_a_reader_on_a_deaf_connection(
    direct: Holdfast, server: redis.Redis, proxy: FaultProxy, match: bytes | None
):
    """Given a connection on which nothing comes, expect a reader to be late, to miss nothing, and to be quick again
    when it is mended."""
    run = await direct.runs("agent", emit_delay=0).claim("run")
    await run.emit("e0")
    await run.flush()
    async with Holdfast(proxy.url, **QUICK) as hf:
        await hf.runs("agent").get("run")
        proxy.black_hole(match=match)
        reader = Follower(hf, "run")
        await run.emit("e1")
        await run.flush()
        if match:  # it asks instead
            await until(lambda: len(reader.seen) == 2, within=4)
        await run.emit("e2")
        await run.flush()
        proxy.heal()
        await until(lambda: len(reader.seen) == 3, within=8)
        await until(lambda: server.pubsub_shardchannels("*ev:run*"), within=4, what="a subscription")
        await run.emit("e3")
        await until(lambda: len(reader.seen) == 4, within=1, what="a push")
        assert await run._settle("completed", "") == "completed"
        await reader.check(View(server, BASE))
        no_reader_left(hf)


async def stopped_without_a_signal(direct: Holdfast, proxy: FaultProxy, how: str, lease: float, within: float) -> Run:
    async with Holdfast(proxy.url, **QUICK) as hf:
        agent = hf.runs("agent", lease=lease)
        begun = asyncio.Event()

        async def body(run: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def claimed() -> None:
            with pytest.raises(RunStopped):
                async with await agent.claim("run") as run:
                    await body(run)

        hf.runner(agent)(body)
        if how == "runner":
            await direct.runs("agent").start("run")
        work = asyncio.create_task(hf.work() if how == "runner" else claimed())
        await asyncio.wait_for(begun.wait(), 5)
        proxy.black_hole(match=b"SSUBSCRIBE")
        proxy.cut()  # from here on it cannot subscribe any more
        assert (await direct.runs("agent").stop("run", "enough")).state == "stopping"
        try:
            return await direct.runs("agent").wait("run", timeout=within)
        finally:
            proxy.heal()
            if how == "runner":
                hf.stop_work()
            await asyncio.wait_for(work, 10)


@pytest.mark.parametrize("lease", [3.0, 30.0])
@pytest.mark.parametrize("how", ["runner", "claim"])
async def test_a_stop_arrives_though_no_signal_does(direct: Holdfast, proxy: FaultProxy, how: str, lease: float):
    """PITFALL 32: the request to stop is in the record; the message only makes it quick."""
    run = await stopped_without_a_signal(direct, proxy, how, lease, 4)
    assert (run.state, run.reason) == ("stopped", "enough")


async def test_without_asking_a_lost_signal_would_be_a_lost_stop(
    direct: Holdfast, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "STOP_CHECK", 3.0)
    monkeypatch.setattr(RunWorker, "_told", lambda self, detail: None)
    with pytest.raises(TimeoutError):
        await stopped_without_a_signal(direct, proxy, "runner", 30.0, 1.5)


@pytest.mark.parametrize("schedule", [1, 2])
async def test_every_run_ends_once_through_faults_on_both_sides(
    direct: Holdfast, server: redis.Redis, proxy: FaultProxy, schedule: int
):
    """Starters and workers lose replies and connections. Every start that was told to have happened is run."""
    chance = random.Random(schedule)
    executed: list[Any] = []
    async with Holdfast(proxy.url, **QUICK) as hf, Holdfast(proxy.url, **QUICK) as starter:
        agent = hf.runs("agent", lease=4, max_attempts=50)

        @hf.runner(agent, concurrency=8, resumable=True)
        async def think(run: Any) -> Any:
            executed.append(run.id)
            await run.emit({"of": run.id})
            await asyncio.sleep(0.005)
            return run.input

        work = asyncio.create_task(hf.work())
        for number in range(60):
            if number % 4 == 0:
                trouble(proxy, chance)
            found = await starter.runs("agent").start(f"run-{number}", number, key=f"k{number % 5}", conflict="queue")
            assert found.id == f"run-{number}"
        proxy.heal()

        async def all_over() -> bool:
            return (await direct.runs("agent").totals())["completed"] == 60

        await until(all_over, within=20, what="the end of every run")
        hf.stop_work()
        await asyncio.wait_for(work, 10)
    view = View(server, BASE)
    view.check()
    for number in range(60):
        run = await direct.runs("agent").get(f"run-{number}")
        assert (run.state, run.result) == ("completed", number)
        # Handed out as often as it was executed, or more: a hand-out whose reply was lost is handed back.
        assert executed.count(run.id) <= run.attempt
        assert view.data(str(run.id)) == [{"of": run.id}] * executed.count(run.id)
