"""What an operation costs: one round trip and one script, and a fixed number of commands inside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
from once_desk import Desk, Desks

from holdfast import Holdfast
from holdfast.once.spec import Space
from holdfast.testing import FaultProxy
from support.backends import Backend, Backends
from support.conditions import until

ASIDE = ("info", "config|resetstat")


@pytest.fixture
def server(valkey: Backend) -> Iterator[redis.Redis]:
    client = valkey.owner.client()
    yield client
    client.close()


def calls(*servers: redis.Redis) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in servers:
        for name, stat in one.info("commandstats").items():
            name = name.removeprefix("cmdstat_")
            if name not in ASIDE:
                found[name] = found.get(name, 0) + stat["calls"]
    return found


async def commands_of(work: Callable[[int], Awaitable[Any]], *servers: redis.Redis) -> dict[str, int]:
    """What the server did, the second time: the first loads scripts and connects."""
    await work(0)
    before = calls(*servers)
    await work(1)
    after = calls(*servers)
    return {name: number - before.get(name, 0) for name, number in after.items() if number != before.get(name, 0)}


async def test_an_id_is_one_script_with_one_command(quick: Desks, server: redis.Redis):
    desk = await quick.desk()
    assert await commands_of(lambda n: desk.once("s", n), server) == {"evalsha": 1, "set": 1}
    assert await commands_of(lambda _: desk.once("s", "known"), server) == {"evalsha": 1, "set": 1}


@pytest.mark.parametrize("count", [100, 4096])
async def test_many_ids_are_one_script_with_one_command_each(quick: Desks, server: redis.Redis, count: int):
    desk = await quick.desk()

    def work(number: int) -> Any:
        return desk.filter_new("s", [(number, one) for one in range(count)])

    assert await commands_of(work, server) == {"evalsha": 1, "set": count}


async def test_more_ids_than_one_script_takes_are_split(quick: Desks, server: redis.Redis):
    desk = await quick.desk()

    def work(number: int) -> Any:
        return desk.filter_new("s", [(number, one) for one in range(10_000)])

    assert await commands_of(work, server) == {"evalsha": 3, "set": 10_000}


async def test_twins_cost_nothing(quick: Desks, server: redis.Redis):
    desk = await quick.desk()
    assert await commands_of(lambda n: desk.filter_new("s", [n, n, n]), server) == {"evalsha": 1, "set": 1}
    assert await commands_of(lambda n: desk.forget("s", n, n), server) == {"evalsha": 1, "del": 1}
    assert await commands_of(lambda n: desk.filter_new("s", []), server) == {}


async def test_a_claim_is_one_script_to_begin_and_one_to_end(quick: Desks, server: redis.Redis):
    desk = await quick.desk()
    done = {"evalsha": 2, "get": 2, "set": 2, "spublish": 1, "time": 1}
    assert await commands_of(lambda n: desk.body(None, "s", n), server) == done
    assert await commands_of(lambda n: desk.body(None, "s", "done"), server) == {"evalsha": 1, "get": 1, "time": 1}
    back = {"evalsha": 2, "get": 2, "set": 1, "del": 1, "spublish": 1, "time": 1}
    assert await commands_of(lambda n: desk.state("t", n), server) == back
    held = await desk.begin("s", "busy", lease=60)
    busy = {"evalsha": 1, "get": 1, "time": 1, "pttl": 1}
    assert await commands_of(lambda n: desk.begin("s", "busy"), server) == busy
    await desk.on(held, "release")


async def test_a_call_is_as_much_as_a_claim_and_its_result_one_script(quick: Desks, server: redis.Redis):
    desk = await quick.desk()

    def charge(key: int) -> str:
        return "charged"

    charged = desk.calls(charge, space="charge")
    made = {"evalsha": 2, "get": 2, "set": 2, "spublish": 1, "time": 1}
    assert await commands_of(charged, server) == made
    assert await commands_of(lambda _: charged(0), server) == {"evalsha": 1, "get": 1, "time": 1}


async def test_a_state_is_one_script(quick: Desks, server: redis.Redis):
    gate = (await quick.desk()).gate("g", 600.0)
    first = {"evalsha": 1, "get": 1, "set": 1, "time": 1}
    assert await commands_of(lambda n: gate.check(n, "A"), server) == first
    unchanged = {"evalsha": 1, "get": 1, "pexpire": 1, "time": 1}
    assert await commands_of(lambda _: gate.check(0, "A"), server) == unchanged
    assert await commands_of(lambda n: gate.check(0, f"new {n}"), server) == first
    await gate.reasons(0, "B", "C", "B")
    repeated = {"evalsha": 1, "get": 1, "set": 1, "time": 1, "zadd": 1, "pexpire": 1}
    assert await commands_of(lambda n: gate.check(0, "CD"[n] if n == 0 else "new 1"), server) == repeated


async def test_a_hundred_states_are_one_script(quick: Desks, server: redis.Redis):
    gate = (await quick.desk()).gate("g", 600.0)

    def work(number: int) -> Any:
        return gate.check_many([((number, one), "A") for one in range(100)])

    assert await commands_of(work, server) == {"evalsha": 1, "get": 100, "set": 100, "time": 1}


async def test_looking_for_what_is_due_is_one_script(quick: Desks, server: redis.Redis):
    gate = (await quick.desk()).gate("g", 600.0)
    await gate.reasons("k", "A", "B", "A", "B")
    looked = await commands_of(lambda _: gate.due(), server)
    assert looked.pop("evalsha") == looked.pop("time") == 1
    assert looked == {"zrangebyscore": 64, "zrange": 64}  # two for each shard of the index, however much it knows


# -- round trips ----------------------------------------------------------------------------------------------------


async def test_each_is_one_round_trip(quick: Desks):
    with FaultProxy("127.0.0.1", quick.backend.owner.port) as proxy:
        desk = await quick.desk(url=proxy.url)
        gate = desk.gate("g", 600.0)
        asks: dict[str, tuple[int, Callable[[int], Any]]] = {
            "once": (1, lambda n: desk.once("s", n)),
            "filter_new": (1, lambda n: desk.filter_new("s", range(100 * n, 100 * n + 100))),
            "check": (1, lambda n: gate.check("k", n)),
            "check_many": (1, lambda n: gate.check_many([(key, n) for key in range(100)])),
            "claim": (2, lambda n: desk.body(None, "t", n)),
        }
        for name, (trips, ask) in asks.items():
            await ask(0)
            before = proxy.requests_forwarded
            await ask(1)
            assert proxy.requests_forwarded - before == trips, name
        await quick.drop(desk)


async def test_who_waits_does_not_poll(quick: Desks, server: redis.Redis):
    """However many wait in a process, and however long: they are told."""
    one, two = await quick.two()
    claim = await one.begin("s", "a", lease=60)
    waiters = [Desk(await quick.actor(two.hf)) for _ in range(5)]
    pending = [desk.body(None, "s", "a", wait=None) for desk in waiters]
    await all_asleep(two, 5)
    before = calls(server)
    await one.on(claim, "confirm")
    assert [await one for one in pending] == ["done"] * 5
    after = calls(server)
    assert after["evalsha"] - before["evalsha"] == 6  # the end, and one look for each
    assert after.get("ssubscribe", 0) == before.get("ssubscribe", 0)


async def all_asleep(desk: Desk, count: int) -> None:
    slots = desk.hf._core.mailbox._slots
    await until(lambda: sum(map(callable, slots.values())) == count, what="all of them asleep")


# -- on a Cluster ---------------------------------------------------------------------------------------------------


async def test_on_a_cluster_each_shard_that_is_touched_is_one_script(backends: Backends, api: str):
    backend = backends.get("cluster")
    backend.flush()
    desks = Desks(backend, api)
    servers = backend.primaries()
    try:
        desk = await desks.desk()
        space = Space(desk.hf._core, "s")
        for key in range(40):  # every node has the scripts
            await desk.body(None, "warm", key)
            await desk.gate("warm").check(key, "A")
        await desk.filter_new("warm", range(200))
        for count in (1, 5, 300):
            batches = [[(count, n, one) for one in range(count)] for n in range(2)]
            shards = {space.key(one)[0] for one in batches[1]}
            done = await commands_of(lambda n, b=batches: desk.filter_new("s", b[n]), *servers)
            assert (done["evalsha"], done["set"]) == (len(shards), count), count
            gate = desk.gate("g", 600.0)
            done = await commands_of(lambda n, b=batches, g=gate: g.check_many([(one, "A") for one in b[n]]), *servers)
            assert (done["evalsha"], done["get"]) == (len(shards), count), count
        done = await commands_of(lambda n: desk.body(None, "s", n), *servers)
        assert done["evalsha"] == 2
    finally:
        await desks.close()


async def test_making_things_sends_nothing(valkey: Backend):
    hf = Holdfast(valkey.url)
    gate = hf.gate("g")
    claim = hf.claim("s", "a")
    hf.idempotent("{key}")(lambda key: None)
    hf.settled(gate)(lambda notice: None)
    assert (repr(gate), claim.state) == ("<Gate g window=300>", "new")
