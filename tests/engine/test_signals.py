"""Subscriptions that are slow, given up or cut: who waits is neither forgotten nor held up by them."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Holdfast
from holdfast.engine.flow import NotSent, Send
from holdfast.engine.resp import pack
from holdfast.engine.signals import SignalHub
from holdfast.testing import FaultProxy
from support.actors import Fleet
from support.backends import Backend
from support.conditions import until


async def test_a_cancellation_that_comes_with_the_answer_is_kept(valkey: Backend, monkeypatch: pytest.MonkeyPatch):
    """`asyncio.wait_for` of Python 3.11 swallows it, and an `acquire` that was cancelled would wait on."""
    async with Holdfast(valkey.url) as hf:

        async def answered(tag: str, channel: str) -> None:
            asyncio.get_running_loop().call_soon(listening.cancel)

        monkeypatch.setattr(hf._open.hub, "_subscribe", answered)

        async def listen() -> None:
            await hf._open.hub.listen("locks.1", "c")
            await asyncio.sleep(5)

        listening = asyncio.create_task(listen())
        done, _ = await asyncio.wait([listening], timeout=2)
        assert done, "the cancellation was swallowed"
        assert listening.cancelled()


async def test_one_who_is_cancelled_does_not_end_the_subscription_of_the_others(valkey: Backend):
    with FaultProxy(valkey.owner.host, valkey.owner.port) as proxy:
        async with Holdfast(proxy.url) as hf:
            hub, lock = hf._open.hub, hf.lock("a")
            tag, channel = lock._spec.place.tag, lock._spec.place.channels + hf._core.client_id
            await hub.listen(tag, channel + "x")
            # Given one who is cancelled before the answer to its subscription has come
            proxy.delay(0.3, direction="replies")
            impatient = asyncio.create_task(hub.listen(tag, channel))
            await until(lambda: channel in hub._live[hf._open.topology.address(tag)].confirmed)
            impatient.cancel()
            await asyncio.wait([impatient])
            # expect it not to be taken for confirmed
            assert not hub.listening(channel)
            assert await hub.listen(tag, channel) is True
            assert hub.listening(channel)
            # and when the connection is cut, expect all of them to be subscribed again, and whoever waits to be told
            proxy.heal()
            hf._core.mailbox.expect("token")
            proxy.cut()
            await until(lambda: hf._core.mailbox.take("token") == "look")
            assert hub.listening(channel)
            assert hub.listening(channel + "x")


async def test_a_subscription_without_an_answer_counts_as_lost(valkey: Backend):
    with FaultProxy(valkey.owner.host, valkey.owner.port) as proxy:
        async with Holdfast(proxy.url, call_timeout=0.3) as hf:
            hub, tag = hf._open.hub, hf.lock("a")._spec.place.tag
            await hub.listen(tag, "one")
            proxy.black_hole(match=b"SSUBSCRIBE")
            with pytest.raises(TimeoutError):
                await hub.listen(tag, "two")
            assert not hub.listening("two")
            proxy.heal()
            await until(lambda: hub.listening("one"), what="the other one, on a new connection")
            assert await hub.listen(tag, "two") is True
            assert hub.listening("two")


async def test_a_slow_subscription_keeps_no_waiter_from_asking(
    valkey: Backend, api: str, monkeypatch: pytest.MonkeyPatch
):
    """Its place in the queue would run out, and a lock that is free would not be found."""

    async def slow(hub: SignalHub, tag: str, channel: str) -> bool:
        await asyncio.sleep(15)
        return True

    monkeypatch.setattr(SignalHub, "listen", slow)
    fleet = Fleet(valkey.url, api)
    holder, waiter = await fleet.actors(2, waiter_lease=0.9, call_timeout=15)
    lease = await holder.do(lambda hf: hf.lock("a").acquire())
    pending = waiter.start(lambda hf: hf.lock("a").acquire(wait=20))

    async def queued() -> bool:
        return (await holder.do(lambda hf: hf.inspect("a"))).waiting == 1

    await until(queued)
    # when it is released, of which nobody hears, expect the waiter to find out by asking
    await holder.do(lambda _: lease.release())
    got = await asyncio.wait_for(pending, 10)
    await waiter.do(lambda _: got.release())
    await fleet.close()


async def test_a_subscription_that_is_made_while_the_client_closes_leaves_no_connection(valkey: Backend):
    with FaultProxy(valkey.owner.host, valkey.owner.port) as proxy:
        async with Holdfast(proxy.url) as hf:
            await hf.lock("a").inspect()
            hub, place, open_before = hf._open.hub, hf.lock("a")._spec.place, proxy.open_connections
            # Given a connection that is being made
            proxy.delay(0.2, direction="replies")
            listening = asyncio.create_task(hub.listen(place.tag, place.channels + hf._core.client_id))
            await until(lambda: proxy.open_connections > open_before)
        # when the client closes before it is there
        with pytest.raises(NotSent):
            await listening
        # expect nothing to be left
        await until(lambda: proxy.open_connections == 0, what="no connection")


async def test_a_connection_of_its_own_that_is_done_with_after_the_client_closed_is_closed(valkey: Backend):
    with FaultProxy(valkey.owner.host, valkey.owner.port) as proxy:
        async with Holdfast(proxy.url) as hf:
            driver, tag = hf._open, hf.lock("a")._spec.place.tag
            await hf.lock("a").inspect()
            proxy.delay(0.2, direction="replies")
            before = proxy.open_connections
            asking = asyncio.create_task(driver._send_aside(Send(tag, pack(b"PING"), alone=True)))
            await until(lambda: proxy.open_connections > before)
        await asyncio.wait([asking])
        await until(lambda: proxy.open_connections == 0, what="no connection")
