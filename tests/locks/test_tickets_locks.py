"""Leases kept by their token alone: as exclusive as any, and renewed by whoever has the token."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import holdfast
from holdfast import Holdfast, InvalidId, LeaseLost, NotAcquired
from support.actors import Fleet
from support.backends import Backend
from support.conditions import until
from support.faults import FAULTS, Plan, every_step, install

QUICK = {"call_timeout": 0.3, "retry_for": 2.0}


async def test_a_ticket_excludes_outlives_its_client_and_is_renewed_by_another(fleet: Fleet):
    first, second = await fleet.actors(2)
    ticket = await first.do(lambda hf: hf.lock("t", ttl=20, renew=False).ticket(wait=0))
    assert 15 < ticket.seconds <= 20
    assert ticket.token not in repr(ticket)
    with pytest.raises(NotAcquired):
        await second.do(lambda hf: hf.lock("t", wait=0).acquire())
    with pytest.raises(NotAcquired):  # it is nobody's here, so it is not re-entered
        await first.do(lambda hf: hf.lock("t", wait=0).acquire())
    await fleet.close_client(first.hf)
    assert (await second.do(lambda hf: hf.inspect("t"))).held
    assert await second.do(lambda hf: hf.lock("t", ttl=40).renew_ticket(ticket.token)) > 30
    assert (await second.do(lambda hf: hf.inspect("t"))).holders[0].remaining > 30
    assert await second.do(lambda hf: hf.lock("t").return_ticket(ticket.token))
    assert not await second.do(lambda hf: hf.lock("t").return_ticket(ticket.token))
    with pytest.raises(LeaseLost):
        await second.do(lambda hf: hf.lock("t").renew_ticket(ticket.token))


async def test_a_ticket_that_nobody_renews_ends_and_the_next_has_a_higher_fence(fleet: Fleet):
    actor = await fleet.actor()
    ticket = await actor.do(lambda hf: hf.lock("t", ttl=0.2, renew=False).ticket())
    lease = await actor.do(lambda hf: hf.lock("t").acquire(wait=5))
    assert lease.fence > ticket.fence
    with pytest.raises(LeaseLost):
        await actor.do(lambda hf: hf.lock("t", ttl=0.2).renew_ticket(ticket.token))
    assert not await actor.do(lambda hf: hf.lock("t").return_ticket(ticket.token))
    await actor.do(lambda hf: lease.release())


async def test_waiting_in_line_the_ticket_has_its_whole_ttl(valkey: Backend):
    async with Holdfast(valkey.url) as hf, Holdfast(valkey.url) as other:
        lease = await other.lock("t").acquire()
        waiting = asyncio.create_task(hf.lock("t", ttl=60, renew=False).ticket(wait=10))
        await until(lambda: _waits(other))
        await lease.release()
        ticket = await waiting
        remaining = (await other.inspect("t")).holders[0].remaining
        assert 50 < ticket.seconds <= remaining + 0.1, "it must not promise more than the server keeps"
        assert not hf._core.holds, "the keeper would renew it"
        await hf.lock("t").return_ticket(ticket.token)


async def _waits(hf: Holdfast) -> int:
    return (await hf.inspect("t")).waiting


async def test_giving_back_grants_the_next_in_line(valkey: Backend):
    async with Holdfast(valkey.url) as hf:
        ticket = await hf.lock("t", renew=False).ticket()
        waiting = asyncio.create_task(hf.lock("t").acquire(wait=10))
        await until(lambda: _waits(hf))
        assert await hf.lock("t").return_ticket(ticket.token)
        assert (await waiting).fence > ticket.fence


@pytest.mark.parametrize("fault", FAULTS)
async def test_at_every_step_of_taking_a_ticket(valkey: Backend, fault: str):
    """Whatever happens to the reply: one holder or none, and what nobody knows of ends by itself."""
    for number, faults in enumerate(every_step(fault)):
        name = f"{fault} {number}"
        async with Holdfast(valkey.url, **QUICK) as hf, Holdfast(valkey.url) as other:
            plan = Plan(faults, InterruptedError)
            install(hf, plan)
            try:
                ticket = await hf.lock(name, ttl=1.0, renew=False).ticket(wait=0)
            except (holdfast.HoldfastError, InterruptedError):
                ticket = None
            plan.faults = {}
            holders = [one.fence for one in (await other.inspect(name)).holders if one.remaining > 0]
            if ticket is not None:
                assert holders == [ticket.fence]
                assert await other.lock(name).return_ticket(ticket.token)
            lease = await other.lock(name).acquire(wait=5)
            await lease.release()
        if not plan.hits:
            break


@pytest.mark.parametrize("token", ["", "x", "a b", "\n", "ü" * 16, "x" * 200, None, 7])
async def test_what_is_no_token_is_refused(valkey: Backend, token: object):
    async with Holdfast(valkey.url) as hf:
        for ask in (hf.lock("t").renew_ticket, hf.lock("t").return_ticket):
            with contextlib.suppress(InvalidId, LeaseLost, holdfast.ConfigurationError):
                assert not await ask(token)
