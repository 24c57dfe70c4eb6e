"""The rights in the operator's page are what Holdfast needs: not less, and not more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.sync
from holdfast import Draft, Holdfast, NotAcquired, NotReplicated
from holdfast.engine.scripts import Scripts
from holdfast.keys import shard_of
from holdfast.testing import FaultProxy, LocalServer, redis_binary
from support.backends import Backends
from support.conditions import until

PACKAGE = Path(holdfast.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operate.md"
SENT = {
    "evalsha", "script|load", "info", "ping", "client|setname", "client|setinfo", "select", "ssubscribe",
    "sunsubscribe", "wait",
}  # fmt: skip
"""What clients send themselves."""
SCRIPTS = sorted(
    f"{file.parent.parent.name}/{file.stem}" for file in PACKAGE.glob("*/lua/*.lua") if not file.stem.startswith("_")
)


def line_of(text: str) -> list[str]:
    (block,) = re.findall(r"^```text\n(ACL SETUSER .*?)^```$", text, re.M | re.S)
    return str(block).split()


LINE = line_of(PAGE.read_text("utf-8"))
ALLOWED = {word[1:] for word in LINE if word.startswith("+")}


def commands_of(source: str) -> set[str]:
    """Commands that a Lua text calls, by the names that ACLs have."""
    calls = re.findall(r"\b(?:call|redis\.p?call)\('([A-Z]+)'(?:, '([A-Z]+)')?", source)
    return {f"{name}|{sub}".lower() if name == "PUBSUB" else name.lower() for name, sub in calls}


# -- by reading -----------------------------------------------------------------------------------------------------


def test_the_line_allows_what_scripts_call_and_clients_send_and_nothing_else() -> None:
    # Given every command in a Lua file
    called = set().union(*(commands_of(file.read_text("utf-8")) for file in PACKAGE.glob("*/lua/*.lua")))
    assert {"lindex", "zadd", "pubsub|shardnumsub"} <= called  # they are found at all
    # expect the line to be that and what clients send
    assert called - ALLOWED == set(), "the line does not allow what a script needs"
    assert ALLOWED - called - SENT == set(), "the line allows what nobody needs"


def test_a_command_that_nobody_allowed_would_be_found() -> None:
    assert commands_of("local x = call('GETDEL', KEYS[1])\nredis.call('PUBSUB', 'SHARDNUMSUB', k)") == {
        "getdel", "pubsub|shardnumsub",
    }  # fmt: skip


# -- by doing -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=("valkey", "redis"))
def server(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    """A server with a user that has exactly what the page says."""
    binary = redis_binary() if request.param == "redis" else None
    if request.param == "redis" and binary is None:
        pytest.skip("no Redis is installed here")
    with LocalServer(binary=binary) as running:
        old = b"redis_version:7.0." in running.call("INFO", "server")
        running.call(*(word for word in LINE if not (old and word == "+client|setinfo")))  # as the page says
        running.call("ACL", "LOG", "RESET")
        yield running


@pytest.fixture
def proxy(server: LocalServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.port) as running:
        yield running


def url_of(place: Any) -> str:
    return str(place.url).replace("redis://", "redis://app:password@")


@pytest.fixture
async def hf(proxy: FaultProxy) -> AsyncIterator[Holdfast]:
    async with Holdfast(url_of(proxy), call_timeout=2.0, sweep=0.3) as client:
        yield client


def refusals(server: LocalServer) -> list[tuple[str, str, str]]:
    """Everything that the server has refused, also what nobody was told of."""
    with server.client() as admin:
        return [(entry["reason"], entry["object"], entry["context"]) for entry in admin.acl_log()]


def lose_reply(proxy: FaultProxy, script: str) -> None:
    """The next request of this script is executed, and its reply is lost."""
    proxy.drop_replies(1, match=Scripts().get(script).sha)


async def use_locks(hf: Holdfast, other: Holdfast) -> None:
    lease = await hf.lock("a", ttl=0.6).acquire()
    with pytest.raises(NotAcquired):
        await other.lock("a").acquire(wait=0.1)
    held = lease.remaining()
    await until(lambda: lease.remaining() < held - 0.05)
    await until(lambda: lease.remaining() > held - 0.05, what="a renewal")
    waiting = asyncio.create_task(other.lock("a").acquire(wait=10))
    await until(lambda: has_waiter(hf), what="a waiter")
    await lease.release()
    handed = await waiting
    assert (await hf.list_locks())[0].held
    assert await hf.count_locks() == 1
    assert await hf.force_release("a", reason="test", fence=handed.fence) == 1
    assert [entry.name for entry in await hf.audit("a")] == ["a"]
    await until(lambda: handed.lost)
    with pytest.raises(NotReplicated):
        await hf.lock("b", replicas=1, replica_timeout=0.1).acquire()
    async with hf.semaphore("s", 2), hf.rwlock("rw").read(), hf.lock_all(["x", "y"]):
        pass
    assert await hf.guarded("a", 1, ("HSET", hf.guard_key("a", "hash"), "field", "value")) == [1]
    assert await hf.ping() >= 0


async def has_waiter(hf: Holdfast) -> bool:
    return (await hf.inspect("a")).waiting > 0


async def use_buffer(hf: Holdfast, proxy: FaultProxy, server: LocalServer) -> None:
    box = hf.buffer("box", capacity=5, max_bytes=1000)
    one = await box.append("u", "first", pending={"file": 5.0, "other": 5.0})
    assert await box.resolve("u", one.id, "file", b"data")
    assert await box.fail("u", one.id, "other")
    lose_reply(proxy, "buffers/append")
    assert (await box.append("u", "second")).length == 2
    await box.converse("u", "hello", "hi")
    lose_reply(proxy, "buffers/converse")
    await box.converse("u", "said", "answered")
    await box.extend("u", ["x" * 300] * 5)
    assert await box.count("u") < 5
    assert await box.peek("u")
    batch = await box.take("u", 2, lease=0.6)
    assert batch is not None
    granted = batch.deadline
    await until(lambda: batch.deadline > granted, what="a renewal")
    await batch.ack([batch.messages[0].id])
    assert not await batch.nack()
    batch = await box.take("u", max_attempts=1)
    if batch is not None:
        await batch.nack(error="test")
    await box.clear("u")
    await box.append("u", "again")
    await box.pop("u")
    await box.append("u", "once more")
    assert await box.flush("u")
    batch = await box.take("u", max_attempts=1)
    assert batch is not None
    assert await batch.nack(error="test")
    letters = await box.dead_letters()
    assert await box.dead_letter(letters[0].id) is not None
    assert await box.replay(letters[0].id) == 1
    await asyncio.wait_for(bury_again(box), 10)
    assert await box.purge((await box.dead_letters())[0].id)
    assert await box.forget("u") > 0
    # A message that nobody can read
    await box.append("bad", "good")
    (key,) = server.call("KEYS", "hf:*:u:bad")
    server.call("LSET", key, 1, b"0" * 16 + b"\0" + b"\xff")
    assert await box.take("bad") is None
    assert (await box.totals()).dead_letters == 1
    assert (await box.stats("bad")).waiting == 0


async def bury_again(box: Any) -> None:
    batch = await box.take("u", max_attempts=1)
    assert await batch.nack(error="test")


async def use_work(hf: Holdfast, proxy: FaultProxy) -> None:
    box = hf.buffer("work")
    seen: list[Any] = []

    @hf.absorber(box, threshold=1, lease=5)
    async def absorb(batch: holdfast.Batch) -> None:
        seen.append(batch.key)

    working = asyncio.create_task(hf.work())
    await box.append("w", 1)
    await until(lambda: seen == ["w"], what="a batch")
    lose_reply(proxy, "buffers/claim")
    await until(lambda: proxy.replies_dropped > 2, what="a claim whose reply is lost")
    await box.append("v", 1)
    await until(lambda: "v" in seen, what="another batch")
    hf.stop_work()
    await working


async def use_sessions(hf: Holdfast, proxy: FaultProxy) -> None:
    chat = hf.sessions("chat", max_entries=3)
    saved = await chat.save("s", "hello", user="u")
    assert saved.id is not None
    assert await chat.get("s", saved.id) is not None
    lose_reply(proxy, "sessions/save")
    await chat.save("s", "again", user="u")
    call = Draft(None, "assistant", ["c1"])
    await chat.save_many("s", [call, Draft("result", "tool", (), "c1"), Draft("thanks")])
    assert len(await chat.context("s")) == await chat.count("s") == 3
    assert await chat.touch("s", ttl=10)
    assert await chat.pop_last("s") is not None
    assert await chat.sessions_of("u") == ["s"]
    assert await chat.forget("u") == 1
    await chat.clear("s")


async def use_runs(hf: Holdfast, proxy: FaultProxy, server: LocalServer) -> None:
    agent = hf.runs("agent", lease=2.0, conflict="queue", max_events=8, archive=True)
    async with await agent.claim("mine", input=1) as run:
        for number in range(12):
            await run.emit(number)
            await run.flush()
        await run.checkpoint({"at": 12})
        assert await run.step("once", lambda: 1) == 1
        held = run.remaining()
        await until(lambda: run.remaining() < held - 0.05)
        await until(lambda: run.remaining() > held - 0.05, what="a renewal")
    assert (await agent.get("mine")).dropped > 0
    assert [event.kind async for event in agent.events("mine")][-1] == "end"
    handled: list[Any] = []

    @hf.runner(agent)
    async def think(run: holdfast.ActiveRun) -> None:
        handled.append(run.id)
        if run.input == "long":
            await asyncio.Event().wait()

    kept: list[Any] = []
    hf.archive(agent, Shelf(kept))
    working = asyncio.create_task(hf.work())
    await agent.start("quick")
    assert (await agent.wait("quick", 10)).state == "completed"
    lose_reply(proxy, "runs/take")
    dropped = proxy.replies_dropped
    await agent.start("long", "long", key="k")
    await until(lambda: "long" in handled and proxy.replies_dropped > dropped, what="a take whose reply is lost")
    await agent.start("waits", key="k")
    flags = Scripts().get("runs/flags").sha
    # Where it was the reply of a later take, all that shares its connection waits ten seconds.
    await until(lambda: server.call("SCRIPT", "EXISTS", flags)[0], 40, "a look at which runs should stop")
    assert await agent.stop_all("k") == 2
    assert (await agent.wait("long", 10)).state == "stopped"
    await until(lambda: len(kept) == 4, within=30, what="every run in the archive")  # a lost reply costs ten seconds
    assert len(await agent.list()) == sum((await agent.totals()).values()) == 4
    assert (await agent.stop("long")).over
    hf.stop_work()
    await working


async def use_once(hf: Holdfast, proxy: FaultProxy) -> None:
    lose_reply(proxy, "once/mark")
    assert await hf.filter_new("orders", ["a", ("b", 1), "a"]) == ["a", ("b", 1)]
    assert await hf.forget("orders", "a") == 1
    lose_reply(proxy, "once/begin")
    async with hf.claim("orders", "a", lease=2.0) as claim:
        deadline = claim._hold.deadline  # type: ignore[union-attr]
        await until(lambda: claim._hold.deadline > deadline, what="a renewal")  # type: ignore[union-attr]
    back = await hf.claim("orders", "c").begin()
    waiting = asyncio.create_task(hf.claim("orders", "c", wait=10).begin())
    await until(lambda: hf._core.feeds, what="one that waits")
    await back.release()
    await (await waiting).confirm()
    gate = hf.gate("venues", 0.2)
    while [(await gate.check("v", state)).reason for state in "ABAB"][-1] != "repeated":
        await gate.forget("v")
    notices = await until(gate.due, what="a notice")
    assert await gate.told(notices[0])
    # One whose caller is gone is taken back.
    asking = asyncio.create_task(gate.check("v", "C"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await until(lambda: not hf._open._background, what="that it is taken back")  # type: ignore[union-attr]


async def use_monitor(hf: Holdfast) -> None:
    venues = hf.monitor("venues", window=0.3, backlog=10)
    told: list[Any] = []

    @venues.subscriber("ear", first=True, retries=1, retry_delay=0.0, max_changes=2)
    async def ear(delivery: holdfast.Delivery) -> None:
        told.append(delivery)
        if len(told) < 3:
            raise ValueError("not now")

    working = asyncio.create_task(hf.work())
    for state in "ABAB":
        await venues.observe("web", "a", state)
    assert await venues.get("web", "a") == "B"
    (letter,) = await until(venues.dead_letters, what="a dead letter")
    assert await venues.replay(letter.id) > 0
    await until(
        lambda: any(change.kind == "settled" for one in told for change in one.changes), what="what it settled to"
    )
    for number in range(15):  # more than the log has room for
        await venues.observe("web", "b", number)
        await until(lambda n=number: told[-1].changes[-1].after == n)
    venues.parser("raw")(lambda raw: [("c", raw)])
    assert await venues.process("raw", "task", 1) is not None
    assert (await venues.status()).waiting.keys() == {"ear"}
    assert await venues.changes()
    assert await venues.unsubscribe("ear")
    assert await venues.forget("web", "a")
    hf.stop_work()
    await working


async def use_fleet(hf: Holdfast, server: LocalServer) -> None:
    async with Holdfast(url_of(server), report=0.1) as other:
        inbox = other.buffer("letters")
        await inbox.append("a", 1)
        await until(hf.fleet.totals, what="a report")
        assert [one.user for one in await inbox.oldest()] == ["a"]
        assert await inbox.largest() == []
    assert [one.name for one in await hf.fleet.names()] == ["letters"]
    assert await hf.fleet.processes() == []
    await hf.fleet.gauge({"a": 1.0})
    assert (await hf.fleet.series(10)).slots[-1].gauges == {"a": 1.0}
    assert await hf.fleet.turn(5)
    assert not await hf.fleet.turn(5)
    entry = await hf.fleet.record("stop", "run", "test")
    await hf.fleet.outcome(entry, "done")
    assert [one.outcome for one in await hf.fleet.actions()] == ["done"]


class Shelf:
    """Keeps runs that have ended."""

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept

    async def keep(self, collection: str, run: holdfast.Run, events: Any) -> None:
        self.kept.append(run.id)


async def test_every_script_runs_with_these_rights(hf: Holdfast, proxy: FaultProxy, server: LocalServer) -> None:
    # Given a user that has exactly what the page says, when it does all that can be done
    async with Holdfast(url_of(server)) as other:
        await use_locks(hf, other)
    await use_buffer(hf, proxy, server)
    await use_work(hf, proxy)
    await use_sessions(hf, proxy)
    await use_runs(hf, proxy, server)
    await use_once(hf, proxy)
    await use_monitor(hf)
    await use_fleet(hf, server)
    # expect that nothing was refused, not even where a refusal would be passed over in silence
    assert refusals(server) == []
    # and that every script was there
    known = server.call("SCRIPT", "EXISTS", *(Scripts().get(name).sha for name in SCRIPTS))
    assert [name for name, there in zip(SCRIPTS, known, strict=True) if not there] == []


def test_the_blocking_twin_needs_no_more(server: LocalServer) -> None:
    with holdfast.sync.Holdfast(url_of(server)) as hf:
        with hf.lock("a"):
            pass
        box = hf.buffer("box")
        box.append("u", 1)
        with box.take("u") as batch:
            assert len(batch.messages) == 1
        hf.sessions("chat").save("s", "hello")
        with hf.runs("agent").claim("r") as run:
            run.emit(1)
        assert [event.kind for event in hf.runs("agent").events("r")] == ["data", "end"]
        assert hf.once("orders", "a")
        with hf.claim("orders", "b") as claim:
            assert claim
        assert hf.gate("venues").check("v", "A").notify
        assert hf.monitor("venues").observe("web", "a", 1).changed
    assert refusals(server) == []


def test_without_a_right_it_is_told_and_logged(server: LocalServer) -> None:
    """The log that the tests above look at has what was refused, so they can fail."""
    server.call("ACL", "SETUSER", "app", "-lindex")
    told = pytest.raises(holdfast.ConfigurationError, match="give the user the rights it needs")
    with holdfast.sync.Holdfast(url_of(server)) as hf, told:
        hf.buffer("box").append("u", 1)
    assert [refused for _, refused, _ in refusals(server)] == ["lindex"]


# -- Sentinel and Cluster -------------------------------------------------------------------------------------------


def additions(pattern: str) -> list[str]:
    """The rights that a sentence of the page names."""
    (sentence,) = re.findall(pattern, " ".join(PAGE.read_text("utf-8").split()))
    return re.findall(r"`(\+[a-z|-]+)`", sentence)


def admit(servers: list[LocalServer], line: list[str]) -> None:
    for one in servers:
        one.call(*line)
        one.call("ACL", "LOG", "RESET")


async def smoke(url: str) -> None:
    async with Holdfast(url, retry_for=20) as hf:
        async with hf.lock("report:42"):
            pass
        box = hf.buffer("box")
        await box.append("u", 1)
        batch = await box.take("u")
        assert batch is not None
        await batch.ack()
        chat = hf.sessions("chat")
        await chat.save("s", "hello", user="u")
        assert await chat.forget("u") == 1
        agent = hf.runs("agent")
        async with await agent.claim("r") as run:
            await run.emit(1)
        assert [event.kind async for event in agent.events("r")] == ["data", "end"]
        assert await hf.filter_new("smoke", range(50)) == list(range(50))
        async with hf.claim("smoke", "a") as claim:
            assert claim
        gate = hf.gate("smoke")
        assert all(decision.notify for decision in await gate.check_many([(key, "A") for key in range(50)]))
        assert await gate.due() == []
        assert (await hf.monitor("venues").observe("web", "a", 1)).changed


async def test_the_rights_for_sentinel_are_enough(backends: Backends) -> None:
    # Given servers and Sentinels with a user that has exactly what the page says
    sentinel = backends.get("sentinel").owner
    admit(sentinel.servers, [*LINE, *additions(r"Add (.*?) for Sentinel;")])
    there = additions(r"The Sentinels are asked (.*?)\.(?: |$)")
    admit(sentinel.sentinels, ["ACL", "SETUSER", "app", "on", ">password", "-@all", *there])
    try:
        # when it is used, expect that nothing was refused
        await smoke(sentinel.url.replace("://", "://app:password@"))
        assert [refusals(one) for one in (*sentinel.servers, *sentinel.sentinels) if refusals(one)] == []
    finally:
        for one in (*sentinel.servers, *sentinel.sentinels):
            one.call("ACL", "DELUSER", "app")


async def test_the_rights_for_a_cluster_are_enough_while_a_slot_moves(backends: Backends) -> None:
    # Given a Cluster with a user that has exactly what the page says
    cluster = backends.get("cluster").owner
    admit(cluster.nodes, [*LINE, *additions(r"for Sentinel; (.*?) for a Cluster")])
    url = cluster.url.replace("://", "://app:password@")
    slot = int(cluster.nodes[0].call("CLUSTER", "KEYSLOT", f"{{session.chat.{shard_of(b's')}}}"))
    source = cluster.node_for_slot(slot)
    owners = [cluster.node_for_slot(other) for other in (0, 8000, 16383)]
    target = next(owner for owner in owners if owner is not source)
    try:
        await smoke(url)
        # when the slot of a session is on its way to a node that does not know the scripts
        target.call("SCRIPT", "FLUSH")
        target.call("CONFIG", "RESETSTAT")
        cluster.begin_migration(slot, target)
        try:
            async with Holdfast(url) as hf:
                chat = hf.sessions("chat")
                assert (await chat.save("s", "hello")).count == 1
                await chat.clear("s")
        finally:
            cluster.finish_migration(slot)
        # expect that nothing was refused
        assert [refusals(one) for one in cluster.nodes if refusals(one)] == []
        with target.client() as admin:
            sent = admin.info("commandstats")
        assert {"cmdstat_asking", "cmdstat_eval"} <= sent.keys(), "the slot's move was met"
    finally:
        for one in cluster.nodes:
            one.call("ACL", "DELUSER", "app")
