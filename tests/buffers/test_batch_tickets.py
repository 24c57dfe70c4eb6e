"""Batches kept by their token alone: at least once, in order, and never to two at a time."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import ConfigurationError, Holdfast, LeaseLost, NotAcquired
from support.backends import Backend
from support.conditions import until
from support.faults import FAULTS, Plan, every_step, install

QUICK = {"call_timeout": 0.3, "retry_for": 2.0}


async def test_a_batch_is_taken_renewed_and_acknowledged_by_its_token(backend: Backend):
    async with Holdfast(backend.url) as first, Holdfast(backend.url) as second:
        await first.buffer("b").extend("u", [1, 2, 3])
        ticket = await first.buffer("b").ticket("u", 2, lease=30)
        assert [message.data for message in ticket.messages] == [1, 2]
        assert (ticket.key, ticket.waiting, ticket.attempt) == ("u", 1, 1)
        assert 25 < ticket.seconds <= 30
        assert ticket.token not in repr(ticket)
        await first.close()
        buffer = second.buffer("b")
        assert (await buffer.stats("u")).held, "closing the client gave back what is not its own"
        with pytest.raises(NotAcquired):
            await buffer.take("u")
        assert await buffer.renew_ticket("u", ticket.token, lease=50) > 45
        assert await buffer.ack_ticket("u", ticket.token, ticket.fence, [ticket.messages[0].id]) == 1
        assert await buffer.ack_ticket("u", ticket.token, ticket.fence) == 0
        assert await buffer.ack_ticket("u", ticket.token, ticket.fence) == 0, "safe to repeat"
        assert [message.data for message in await buffer.peek("u")] == [3]
        with pytest.raises(LeaseLost):
            await buffer.renew_ticket("u", ticket.token)
        await buffer.forget("u")


async def test_a_ticket_whose_lease_ended_cannot_acknowledge_what_another_has(valkey: Backend):
    async with Holdfast(valkey.url) as hf:
        buffer = hf.buffer("b")
        await buffer.append("u", 1)
        old = await buffer.ticket("u", lease=0.1)
        new = await until(lambda: _again(buffer))
        assert (new.id, new.attempt) == (old.id, 2)
        assert new.fence > old.fence
        for ask in (
            lambda: buffer.ack_ticket("u", old.token, old.fence), lambda: buffer.renew_ticket("u", old.token),
            lambda: buffer.nack_ticket("u", old.token),
        ):  # fmt: skip
            with pytest.raises(LeaseLost):
                await ask()
        assert await buffer.ack_ticket("u", new.token, new.fence) == 0
        assert (await buffer.totals()).counts["absorbed"] == 1


async def _again(buffer: holdfast.Buffer):
    try:
        return await buffer.ticket("u", lease=30)
    except NotAcquired:
        return None


async def test_given_back_too_often_it_is_a_dead_letter(valkey: Backend):
    async with Holdfast(valkey.url) as hf:
        buffer = hf.buffer("b")
        await buffer.append("u", 1)
        for attempt in range(1, 4):
            ticket = await buffer.ticket("u")
            assert ticket.attempt == attempt
            dead = await buffer.nack_ticket("u", ticket.token, error="no", max_attempts=3)
            assert dead == (attempt == 3)
        (letter,) = await buffer.dead_letters()
        assert (letter.error, letter.attempts) == ("no", 3)
        assert await buffer.ticket("u") is None
        await buffer.forget("u")


async def test_a_delay_is_kept_and_then_it_is_due(valkey: Backend):
    async with Holdfast(valkey.url) as hf:
        buffer = hf.buffer("b")
        await buffer.append("u", 1)
        ticket = await buffer.ticket("u")
        await buffer.nack_ticket("u", ticket.token, delay=60)
        with pytest.raises(NotAcquired):
            await buffer.ticket("u")
        assert (await buffer.stats("u")).free_in > 50
        await buffer.forget("u")


@pytest.mark.parametrize("fault", FAULTS)
async def test_at_every_step_nothing_is_lost_or_acknowledged_twice(valkey: Backend, fault: str):
    for number, faults in enumerate(every_step(fault, 60)):
        user = f"{fault} {number}"
        async with Holdfast(valkey.url, **QUICK) as hf, Holdfast(valkey.url) as other:
            await other.buffer("b").extend(user, [1, 2])
            plan = Plan(faults, InterruptedError)
            install(hf, plan)
            done = False
            try:
                ticket = await hf.buffer("b").ticket(user, lease=0.3)
                await hf.buffer("b").renew_ticket(user, ticket.token, lease=0.3)
                await hf.buffer("b").ack_ticket(user, ticket.token, ticket.fence)
                done = True
            except (holdfast.HoldfastError, InterruptedError):
                pass
            plan.faults = {}
            buffer = other.buffer("b")
            await until(lambda buffer=buffer, user=user: _free(buffer, user))
            batch = await buffer.take(user)
            if done:
                assert batch is None
            elif batch is not None:
                assert [message.data for message in batch.messages] == [1, 2]
                await batch.ack()
        if not plan.hits:
            break
    async with Holdfast(valkey.url) as hf:
        totals = await hf.buffer("b").totals()
        assert totals.counts["absorbed"] == 2 * (number + 1), "each message once"


async def _free(buffer: holdfast.Buffer, user: str) -> bool:
    stats = await buffer.stats(user)
    return not stats.held or stats.free_in <= 0


async def test_wrong_arguments_are_refused_before_anything_is_sent(valkey: Backend):
    async with Holdfast(valkey.url) as hf:
        buffer = hf.buffer("b")
        with pytest.raises(ConfigurationError):
            await buffer.ack_ticket("u", "0" * 32, 1, [])
        with pytest.raises(ConfigurationError):
            await buffer.ack_ticket("u", "0" * 32, 1, ["nonsense"])
        for lease in (0, -1, 90_000, float("nan")):
            with pytest.raises(ConfigurationError):
                await buffer.ticket("u", lease=lease)
