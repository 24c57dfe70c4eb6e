"""What an operation costs: one round trip and one script each, whatever the number of waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from support.actors import Fleet
from support.backends import Backend
from support.conditions import until

# Sent by clients, never from inside a script of ours.
SENT = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_ssubscribe", "cmdstat_script|load", "cmdstat_info")


@pytest.fixture
def server(valkey: Backend) -> Iterator[redis.Redis]:
    client = valkey.owner.client()
    yield client
    client.close()


@pytest.fixture
async def crew(valkey: Backend, api: str):
    fleet = Fleet(valkey.url, api)
    yield fleet
    await fleet.close()


def sent(server: redis.Redis) -> int:
    stats = server.info("commandstats")
    return sum(stats[name]["calls"] for name in SENT if name in stats and name != "cmdstat_info")


async def warm(actor) -> None:
    lease = await actor.do(lambda hf: hf.lock("warm").acquire())
    await actor.do(lambda _: lease.release())


async def test_acquire_and_release_are_one_script_each(crew: Fleet, server: redis.Redis):
    actor = await crew.actor()
    await warm(actor)
    server.config_resetstat()
    for _ in range(10):
        lease = await actor.do(lambda hf: hf.lock("a").acquire())
        again = await actor.do(lambda hf: hf.lock("a").acquire())  # re-entry asks nobody
        await actor.do(lambda _, lease=again: lease.release())
        await actor.do(lambda _, lease=lease: lease.release())
    assert sent(server) == 20


async def test_a_try_that_fails_is_one_script(crew: Fleet, server: redis.Redis):
    holder, other = await crew.actors(2)
    lease = await holder.do(lambda hf: hf.lock("a").acquire())
    await warm(other)
    server.config_resetstat()
    for _ in range(10):
        assert await other.do(lambda hf: hf.lock("a").try_acquire()) is None
    assert sent(server) == 10
    await holder.do(lambda _: lease.release())


@pytest.mark.parametrize("waiters", [2, 12])
async def test_a_hand_over_is_two_commands_however_many_wait(crew: Fleet, server: redis.Redis, waiters: int):
    """One to queue, one to release; the grant itself comes as a signal."""
    holder = await crew.actor()
    client = await crew.client()
    actors = [await crew.actor(client) for _ in range(waiters)]
    lease = await holder.do(lambda hf: hf.lock("a").acquire())
    # the first wait of a client subscribes; that is once, and not what is measured
    first = actors[0].start(lambda hf: hf.lock("a").acquire())

    async def queued(count):
        return (await holder.do(lambda hf: hf.inspect("a"))).waiting == count

    await until(lambda: queued(1))
    await holder.do(lambda _: lease.release())
    lease, owner = await asyncio.wait_for(first, 5), actors[0]
    pending = []
    for number, actor in enumerate(actors[1:], 1):
        pending.append((actor, actor.start(lambda hf: hf.lock("a").acquire())))
        await until(lambda n=number: queued(n))
    server.config_resetstat()
    for actor, future in pending:
        await owner.do(lambda _, lease=lease: lease.release())
        lease, owner = await asyncio.wait_for(future, 5), actor
    releases = sent(server)
    await owner.do(lambda _: lease.release())
    # each hand-over is the one release; a slow machine may let a waiter show that it lives in between
    assert len(pending) <= releases <= len(pending) + waiters


async def test_a_batch_is_one_round_trip(crew: Fleet, server: redis.Redis):
    actor = await crew.actor()
    await warm(actor)
    server.config_resetstat()
    names = [f"n{number}" for number in range(50)]
    leases = await actor.do(lambda hf: hf.acquire_many(names))
    assert all(leases)
    assert sent(server) == 50
    for lease in leases:
        await actor.do(lambda _, lease=lease: lease.release())
