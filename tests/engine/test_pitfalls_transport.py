"""PITFALLS 45 to 48, server and transport: each check holds, and fails with the bug put back."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import redis

from holdfast import Holdfast, Indeterminate, LeaseLost, ServerFull, UnsafeServer
from holdfast.engine import checks, flow
from holdfast.engine.flow import ReplyLost
from holdfast.engine.keeper import Keeper
from holdfast.engine.threads import ThreadDriver
from holdfast.events import Renewed
from holdfast.testing import LocalServer
from holdfast.testing.sentinel import SentinelNode
from support.backends import Backends
from support.conditions import until
from support.mutants import Bug, Case, Pitfalls, World, fails, holds, lua, must, patch, place_of

cases = Pitfalls()

NO_REPLAY = ("locks/guarded", "then return {'replayed'} end", "then end")


# -- 45: sent again -------------------------------------------------------------------------------------------------


@cases.pitfall(45, runs_each_time=lua(*NO_REPLAY))
async def a_write_whose_reply_is_lost_three_times_happens_once(world: World):
    proxy, server = world.proxy(), world.redis()
    client = await world.client(proxy.url)
    key = client.guard_key("a", "count")
    await client.guarded("a", 1, ("SET", key, 0))
    proxy.drop_replies(3, match=b"EVALSHA")
    await client.guarded("a", 1, ("INCR", key))
    assert proxy.replies_dropped == 3
    assert server.get(key) == b"1", "PITFALL 45: one write was executed more than once"


_exchange = ThreadDriver._exchange


def _stubborn_exchange(driver: ThreadDriver, *args):
    """As redis-py's retry would, below everything that knows what may be repeated."""
    for _ in range(3):
        with contextlib.suppress(ReplyLost):
            return _exchange(driver, *args)
    return _exchange(driver, *args)


@cases.pitfall(45, library_sends_again=patch(ThreadDriver, "_exchange", _stubborn_exchange))
async def what_cannot_be_repeated_is_sent_once(world: World):
    proxy, server = world.proxy(), world.redis()
    client = await world.blocking(proxy.url, edits=(("locks/guarded", "retry: opid", "retry: never"), NO_REPLAY))
    key = client.guard_key("a", "count")
    await asyncio.to_thread(client.guarded, "a", 1, ("SET", key, 0))
    proxy.drop_replies(3, match=b"EVALSHA")
    outcome = await asyncio.gather(asyncio.to_thread(client.guarded, "a", 1, ("INCR", key)), return_exceptions=True)
    assert server.get(key) == b"1", "PITFALL 45: a write that cannot be repeated was sent again"
    assert isinstance(outcome[0], Indeterminate), "PITFALL 45: a lost reply was taken for an answer"


# -- 46: scripts that the server forgot -----------------------------------------------------------------------------

_after_error = flow._after_error


def not_understood(word: str) -> Bug:
    """This error reply means nothing to the client."""

    def after_error(*args, **options):
        known = [text.replace(word, "ERR") if isinstance(text, str) else text for text in args]
        return (yield from _after_error(*known, **options))

    return patch(flow, "_after_error", after_error)


def load_scripts(client: Holdfast, server: LocalServer) -> None:
    """So that the first error is the one that the check is about."""
    for name in ("acquire", "release", "renew", "audit"):
        server.call("SCRIPT", "LOAD", client._core.scripts.get(f"locks/{name}").source)


@cases.pitfall(46, not_loaded_again=not_understood("NOSCRIPT"))
async def scripts_that_the_server_forgot_are_loaded_again(world: World):
    server, events = world.server(persistence="always"), []
    client = await world.client(server.url, observers=[events.append])
    load_scripts(client, server)
    lease = await client.lock("a", ttl=1.5).acquire()
    server.call("SCRIPT", "FLUSH")
    other = await must(client.lock("b").acquire(), "PITFALL 46: an acquire failed after SCRIPT FLUSH")
    await until(lambda: events and (lease.lost or any(isinstance(e, Renewed) for e in events)))
    assert not lease.lost, "PITFALL 46: a renewal failed after SCRIPT FLUSH"
    await lease.release()
    server.kill()
    server.restart()
    await must(other.release(), "PITFALL 46: a release failed after a restart")


# -- 47: out of memory ----------------------------------------------------------------------------------------------


def _refused_when_full(name: str) -> Bug:
    return lua(f"locks/{name}", "#!lua flags=allow-oom\n", "#!lua\n")


@cases.pitfall(
    47,
    release_refused=_refused_when_full("release"),
    renewal_refused=_refused_when_full("renew"),
    adding_allowed=lua("locks/acquire", "#!lua\n", "#!lua flags=allow-oom\n"),
)
async def a_full_server_frees_and_renews_and_adds_nothing(world: World):
    server, events = world.server(), []
    client = await world.client(server.url, observers=[events.append])
    load_scripts(client, server)
    lease = await client.lock("a", ttl=1.5).acquire()
    server.call("CONFIG", "SET", "maxmemory", 1)
    (added,) = await asyncio.gather(client.lock("b").acquire(), return_exceptions=True)
    assert isinstance(added, ServerFull), "PITFALL 47: a full server was made to add something"
    await until(lambda: lease.lost or any(isinstance(e, Renewed) for e in events))
    assert not lease.lost, "PITFALL 47: a full server refused to renew"
    await must(lease.release(), "PITFALL 47: a full server refused to free something")
    server.call("CONFIG", "SET", "maxmemory", 0)


@cases.pitfall(47, accepted=patch(checks, "_check_eviction", lambda core, info: None))
async def a_server_that_may_evict_locks_is_refused(world: World):
    for policy in ("allkeys-lru", "volatile-ttl"):
        server = world.server(config={"maxmemory-policy": policy})
        (opened,) = await asyncio.gather(world.client(server.url), return_exceptions=True)
        assert isinstance(opened, UnsafeServer), f"PITFALL 47: a server with {policy} was accepted"


# -- 48: the wrong server, or not now -------------------------------------------------------------------------------


def errors_of(server: LocalServer, word: str) -> bool:
    return f"errorstat_{word}:".encode() in server.call("INFO", "errorstats")


@cases.pitfall(48, not_understood=not_understood("READONLY"))
async def a_demoted_primary_is_waited_out(world: World):
    server = world.server()
    client = await world.client(server.url)
    load_scripts(client, server)
    lease = await client.lock("a").acquire()
    server.call("REPLICAOF", "127.0.0.1", 1)
    releasing = world.start(lease.release())
    await until(lambda: errors_of(server, "READONLY"), what="a refusal")
    server.call("REPLICAOF", "NO", "ONE")
    await must(releasing, "PITFALL 48: READONLY in the middle of an operation ended it")


@cases.pitfall(48, not_understood=not_understood("BUSY"))
async def a_server_that_is_busy_with_a_script_is_waited_out(world: World):
    server = world.server(config={"busy-reply-threshold": "20"})
    proxy = world.proxy(server)
    client = await world.client(proxy.url)
    load_scripts(client, server)
    lease = await client.lock("a").acquire()
    endless = world.start(asyncio.to_thread(server.call, "EVAL", "while true do end", 0, timeout=20))
    try:
        await until(lambda: not answers(server), what="a server that is busy")
        sent = proxy.requests_forwarded
        releasing = world.start(lease.release())
        await until(lambda: releasing.done() or proxy.requests_forwarded >= sent + 2, what="a second try")
    finally:
        server.call("SCRIPT", "KILL")
        await asyncio.wait([endless])
    await must(releasing, "PITFALL 48: BUSY in the middle of an operation ended it")


def answers(server: LocalServer) -> bool:
    try:
        return server.call("PING") == b"PONG"
    except redis.ResponseError:
        return False


@cases.pitfall(
    48,
    tryagain_not_understood=not_understood("TRYAGAIN"),
    ask_not_understood=not_understood("ASK "),
    moved_not_understood=not_understood("MOVED"),
)
async def a_slot_that_moves_is_followed(world: World):
    from redis.crc import key_slot

    cluster = world.backends.get("cluster").owner
    world.backends.get("cluster").flush()
    client = await world.client(cluster.url)
    slot = key_slot(place_of(client, "a").tag.encode())
    primaries = {cluster.node_for_slot(number) for number in (0, 6000, 16383)}
    source = cluster.node_for_slot(slot)
    load_scripts(client, source)  # and not where the slot goes, so that ASK is followed by NOSCRIPT
    source.call("CONFIG", "RESETSTAT")
    lease = await client.lock("a").acquire()
    cluster.begin_migration(slot, next(node for node in primaries if node is not source))
    try:
        cluster.move_keys(slot, limit=1)
        releasing = world.start(lease.release())
        await until(lambda: errors_of(source, "TRYAGAIN"), what="a refusal half-way")
        cluster.move_keys(slot)
        await must(client.audit("a"), "PITFALL 48: ASK in the middle of an operation ended it")
        assert errors_of(source, "ASK")
    finally:
        cluster.finish_migration(slot)
    await must(releasing, "PITFALL 48: TRYAGAIN or MOVED in the middle of an operation ended it")
    # It may have been through before the slot was at its new place; then this one is sent on.
    await must(client.inspect("a"), "PITFALL 48: MOVED ended an operation")
    assert errors_of(source, "MOVED")


async def _stay(keeper: Keeper) -> None:
    return None


@cases.pitfall(48, not_asked_again=patch(Keeper, "_follow_primary", _stay))
async def an_old_primary_that_still_answers_is_left(world: World):
    # Given two servers that both answer as primaries
    old, new = world.server(), world.server()
    sentinel = world.enter(SentinelNode(None, [f"sentinel monitor service {old.host} {old.port} 1"]))
    client = await world.client(f"redis+sentinel://{sentinel.host}:{sentinel.port}/service")
    async with client.lock("a"):
        assert old.call("EXISTS", place_of(client, "a").lock) == 1
    # when the Sentinel names the other one
    sentinel.call("SENTINEL", "REMOVE", "service")
    sentinel.call("SENTINEL", "MONITOR", "service", new.host, new.port, 1)

    # expect the next locks to be there
    async def lands_there():
        lease = await client.lock("b").acquire()
        found = new.call("EXISTS", place_of(client, "b").lock) == 1
        with contextlib.suppress(LeaseLost):  # it was given by the old one and asked of the new one
            await lease.release()
        return found

    await until(lands_there, within=2, what="PITFALL 48: the primary that was replaced given up")


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
