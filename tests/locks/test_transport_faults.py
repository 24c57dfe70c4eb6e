"""Faults on the wire, through a real proxy: replies dropped, connections cut or silent, at every request in turn."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast import Holdfast, HoldfastError
from holdfast.testing import FaultProxy
from support.actors import Fleet
from support.backends import Backend
from support.conditions import until

QUICK = {"call_timeout": 0.3, "retry_for": 5.0, "waiter_lease": 0.6}
TTL = 1.0


def arm(proxy: FaultProxy, fault: str, n: int) -> None:
    """The n-th script call from now on meets the fault."""
    if fault == "cut":
        proxy.cut_after_requests(n, match=b"EVALSHA")
    elif n == 1:
        proxy.drop_replies(1, match=b"EVALSHA", cut=fault == "dropped")


@pytest.fixture
async def proxied(valkey: Backend, api: str):
    with FaultProxy("127.0.0.1", valkey.owner.port) as proxy:
        fleet = Fleet(valkey.url, api)
        yield proxy, fleet
        proxy.heal()
        await fleet.close()


@pytest.mark.parametrize("fault", ["cut", "dropped", "silent"])
@pytest.mark.parametrize("step", [1, 2])
async def test_an_operation_survives_a_fault_on_the_wire(proxied, fault: str, step: int):
    """Step 1 strikes the acquire, step 2 the release. Either way it happens once."""
    proxy, fleet = proxied
    subject = await fleet.actor(url=proxy.url, **QUICK)
    bystander = await fleet.actor()
    if step == 1:
        arm(proxy, fault, 1)
    lease = await subject.do(lambda hf: hf.lock("a", ttl=TTL).acquire(wait=5))
    info = await bystander.do(lambda hf: hf.inspect("a"))
    assert [h.fence for h in info.holders] == [lease.fence]
    if step == 2:
        arm(proxy, fault, 1)
    await subject.do(lambda _: lease.release())
    assert lease.released
    assert not (await bystander.do(lambda hf: hf.inspect("a"))).held
    got = await bystander.do(lambda hf: hf.lock("a").try_acquire())
    assert got.fence > lease.fence
    await bystander.do(lambda _: got.release())


@pytest.mark.parametrize("fault", ["cut", "dropped", "silent"])
async def test_a_waiter_survives_a_fault_while_the_lock_is_handed_to_it(proxied, fault: str):
    proxy, fleet = proxied
    subject = await fleet.actor(url=proxy.url, **QUICK)
    holder = await fleet.actor()
    lease = await holder.do(lambda hf: hf.lock("a", ttl=30).acquire())
    pending = subject.start(lambda hf: hf.lock("a", ttl=TTL).acquire(wait=10))

    async def queued():
        return (await holder.do(lambda hf: hf.inspect("a"))).waiting == 1

    await until(queued)
    if fault == "cut":
        proxy.cut()  # the subscribed connection too: the signal is lost
    else:
        arm(proxy, fault, 1)
    await holder.do(lambda _: lease.release())
    got = await asyncio.wait_for(pending, 8)
    assert got.fence > lease.fence
    await subject.do(lambda _: got.release())


async def test_the_keeper_keeps_leases_through_cuts(proxied):
    """PITFALL 9: a renewing thread that dies on its first exception, or does not survive a reconnect."""
    proxy, fleet = proxied
    subject = await fleet.actor(url=proxy.url, **QUICK)
    lease = await subject.do(lambda hf: hf.lock("a", ttl=TTL).acquire())
    for _ in range(6):  # longer than its TTL
        proxy.cut()
        before = lease.remaining()
        await until(lambda: lease.lost or lease.remaining() < before - 0.05)  # noqa: B023
        proxy.cut()
        await until(lambda: lease.lost or lease.remaining() > before - 0.05, what="a renewal")  # noqa: B023
        assert not lease.lost
    await subject.do(lambda _: lease.release())


async def test_past_its_deadline_a_lease_is_lost_though_the_server_cannot_be_reached(proxied):
    """The holder's own clock ends it; nobody has to tell."""
    proxy, fleet = proxied
    subject = await fleet.actor(url=proxy.url, **QUICK)
    lease = await subject.do(lambda hf: hf.lock("a", ttl=TTL).acquire())
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    lease.on_lost(lambda: loop.call_soon_threadsafe(told.set))
    proxy.black_hole()
    await asyncio.wait_for(told.wait(), TTL + 0.5)
    assert lease.lost
    bystander = await fleet.actor()
    got = await bystander.do(lambda hf: hf.lock("a").acquire(wait=TTL + 1))
    assert got.fence > lease.fence
    await bystander.do(lambda _: got.release())


async def test_no_reply_ever_reaches_another_caller(valkey: Backend):
    """Forty callers share one connection that is cut, silenced and delayed at random (with a fixed start); each must
    see its own lock and nobody else's. PITFALL 8."""
    chance = random.Random(20)
    with FaultProxy("127.0.0.1", valkey.owner.port) as proxy:
        async with Holdfast(proxy.url, **QUICK) as hf, Holdfast(valkey.url) as witness:
            done = dict.fromkeys(range(40), 0)
            stop = asyncio.Event()

            async def caller(number: int) -> None:
                name = f"caller-{number}"
                while not stop.is_set():
                    try:
                        async with hf.lock(name, ttl=5, wait=3) as lease:
                            info = await hf.inspect(name)
                            assert info.name == name
                            assert [h.fence for h in info.holders] == [lease.fence], "somebody else's reply"
                        done[number] += 1
                    except HoldfastError:
                        continue

            async def trouble() -> None:
                for number in range(1000):
                    if number >= 60 and sum(done.values()) > 50:
                        return  # enough of it, and enough was done meanwhile: a busy machine takes longer
                    match chance.randrange(4):
                        case 0:
                            proxy.cut()
                        case 1:
                            proxy.drop_replies(chance.randrange(1, 20), match=b"EVALSHA")
                        case 2:
                            proxy.cut_after_requests(chance.randrange(1, 40), match=b"EVALSHA")
                        case 3:
                            # impatient callers leave in the middle of a reply
                            victim = chance.choice(callers)
                            victim.cancel()
                            callers.remove(victim)
                            callers.append(asyncio.create_task(caller(chance.randrange(40))))
                    await asyncio.sleep(0.04)

            callers = [asyncio.create_task(caller(number)) for number in done]
            await trouble()
            proxy.heal()
            stop.set()
            results = await asyncio.gather(*callers, return_exceptions=True)
            wrong = [r for r in results if isinstance(r, AssertionError)]
            assert not wrong, wrong[0]
            assert sum(done.values()) > 50

            async def all_free():
                return not [i for i in await witness.list_locks(1000) if i.held]

            await until(all_free, within=6)
