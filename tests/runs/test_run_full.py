"""A server without memory, and one that forgot its scripts, with runs (PITFALLS 46, 47)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis
from run_crew import Held

from holdfast import Holdfast, ServerFull
from holdfast.engine.embedded import EmbeddedServer
from support.conditions import until

Own = tuple[Holdfast, redis.Redis]


@pytest.fixture
async def own() -> AsyncIterator[Own]:
    """A server of its own with a client and an admin."""
    embedded = await asyncio.to_thread(EmbeddedServer.open, "embedded:")
    try:
        with redis.Redis(unix_socket_path=embedded.socket_path) as admin:
            async with Holdfast(f"unix://{embedded.socket_path}", drain=0.1) as hf:
                yield hf, admin
    finally:
        await asyncio.to_thread(embedded.close)


def fill(admin: redis.Redis) -> None:
    """What it has is more than it may have."""
    admin.config_set("maxmemory", 100_000)


async def test_a_full_server_takes_no_more_and_lets_runs_end_and_be_read(own: Own):
    hf, admin = own
    agent = hf.runs("agent", lease=0.5)
    mine, lost = await agent.claim("mine"), await agent.claim("lost", lease=0.2, max_attempts=1)
    lost._given.hold.abandoned = True
    stopped = await agent.claim("stopped")
    for name in ("queued", "other"):
        await agent.start(name, key=name)
    await mine.emit("before")
    await mine.flush()
    fill(admin)
    # what adds is refused, and says so
    for call in (lambda: agent.start("new"), lambda: agent.claim("new"), lambda: mine.checkpoint(1)):
        with pytest.raises(ServerFull):
            await call()
    # what keeps or ends goes on: leases, stops, ends, looks
    held = (await agent.get("mine")).heartbeat
    await until(lambda: renewed(agent, held), what="renewals")
    assert (await agent.stop("queued")).state == "stopped"
    assert await agent.stop_all("other") == 1
    await agent.stop("stopped")
    await until(lambda: stopped.stopping, what="the word")
    async with mine:
        await mine.emit("a last word")
    assert [event.data for event in [e async for e in agent.events("mine")][:-1]] == ["before", "a last word"]
    assert (await agent.get("lost")).reason == "worker lost"
    assert (await agent.totals())["completed"] == len(await agent.list(state="completed")) == 1
    # and with room again everything does
    admin.config_set("maxmemory", 0)
    assert (await agent.start("new")).state == "queued"


async def renewed(agent, since: float) -> bool:
    return (await agent.get("mine")).heartbeat > since + 0.3


async def test_a_worker_on_a_full_server_goes_on_when_there_is_room(own: Own):
    hf, admin = own
    agent = hf.runs("agent", lease=0.5)
    held = Held(result="done")
    hf.runner(agent)(held)
    for name in ("a", "b"):
        await agent.start(name)
    working = asyncio.create_task(hf.work())
    await until(lambda: len(held.log) == 2, what="both")
    await agent.start("c", conflict="queue")
    fill(admin)
    held.go.set()
    for name in ("a", "b"):
        assert (await agent.wait(name, 5)).state == "completed"
    admin.config_set("maxmemory", 0)
    assert (await agent.wait("c", 10)).state == "completed"
    hf.stop_work()
    await working


async def test_a_server_that_forgot_its_scripts_is_told_them_again(own: Own):
    hf, admin = own
    agent = hf.runs("agent", lease=0.3)
    admin.script_flush()
    await agent.start("r")
    admin.script_flush()
    run = await agent.claim("r")
    for number in range(3):
        admin.script_flush()
        await run.emit(number)
        await run.checkpoint(number)
    admin.script_flush()
    held = run.remaining()
    await until(lambda: run.remaining() < held)
    await until(lambda: run.remaining() > held - 0.01, what="a renewal")
    admin.script_flush()
    async with run:
        pass
    admin.script_flush()
    assert [event.kind async for event in agent.events("r")] == ["data", "data", "data", "end"]
