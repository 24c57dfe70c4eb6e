"""PITFALLS 5, 7, 11, 12: each check holds, and fails with the bug put back."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast import Holdfast
from holdfast.engine.aio import AsyncDriver
from holdfast.engine.flow import call
from support.backends import Backends
from support.conditions import until
from support.mutants import Case, Pitfalls, World, attempt, fails, holds, lua, must, patch, place_of, waiters

cases = Pitfalls()


async def ask(client: Holdfast, name: str, token: str, lease: float) -> list:
    """Ask for a lock as a process would that then dies: it will not ask again."""
    core, at = client._core, place_of(client, name)
    script = core.scripts.get("locks/acquire")
    args = (token, 1, 1, 30_000, int(lease * 1000), "f", "nowhere 1", at.channels)
    flow = call(script, at.tag, at.keys, args, clock=core.clock, until=core.clock() + 5)
    return await client._open.run(flow)


# -- 5: the queue ---------------------------------------------------------------------------------------------------


@cases.pitfall(5, granted_to_the_deaf=lua("locks/_queue", "head, fence, ms)) == 0 then", "head, fence, ms)) < 0 then"))
async def waiters_that_nobody_listens_for_are_passed_over(world: World):
    holder, live = await world.client(), await world.client()
    lease = await holder.lock("a").acquire()
    for number in range(3):
        await ask(holder, "a", f"dead{number}.x", lease=30)
    waiting = world.start(live.lock("a").acquire())
    await waiters(holder, "a", 4)
    await lease.release()
    await must(waiting, "PITFALL 5: a dead head blocks everyone", within=0.6)


@cases.pitfall(5, never_leave=lua("locks/_queue", "if deadline <= now or deadline - now > lease", "if deadline == 0"))
async def waiters_that_show_no_life_lose_their_places(world: World):
    # Given three whose processes stand still: their connections look alive, but they have not asked again in time
    holder, live = await world.client(), await world.client()
    lease = await holder.lock("a").acquire()
    listening = world.enter(world.redis().pubsub())
    listening.ssubscribe(place_of(holder, "a").channels + "paused")
    for number in range(3):
        await ask(holder, "a", f"paused.{number}", lease=0.4)
    asked = time.monotonic()
    waiting = world.start(live.lock("a").acquire())
    await waiters(holder, "a", 4)
    await until(lambda: time.monotonic() > asked + 0.5, what="the end of their time")
    # when the lock is released, expect that it costs nobody anything
    await lease.release()
    await must(waiting, "PITFALL 5: paused waiters block everyone", within=10)
    told = [m["data"] for m in iter(lambda: listening.get_sharded_message(timeout=0.05), None)]
    granted = [data for data in told if isinstance(data, bytes) and data.startswith(b"grant ")]
    assert not granted, "PITFALL 5: the lock was handed to one dead waiter after the other"


@cases.pitfall(5, stays=lua("locks/release", "if ticket then drop_ticket(token) end", ""))
async def a_cancelled_waiter_leaves_the_queue(world: World):
    holder, other = await world.client(), await world.client(waiter_lease=30)
    lease = await holder.lock("a").acquire()
    waiting = world.start(other.lock("a").acquire())
    await waiters(holder, "a", 1)
    waiting.cancel()

    async def nobody_waits():
        return (await holder.inspect("a")).waiting == 0

    await until(nobody_waits, within=0.6, what="PITFALL 5: the place of a cancelled waiter given up")
    await lease.release()


@cases.pitfall(5, no_life=lua("locks/acquire", "call('PEXPIRE', K[2], longest + GRACE)", ""))
async def the_queue_does_not_outlive_its_waiters(world: World):
    holder, server = await world.client(), world.redis()
    await ask(holder, "a", "first.x", lease=1)
    await ask(holder, "a", "second.x", lease=1)
    at = place_of(holder, "a")
    lives = [server.pttl(key) for key in (at.lock, at.queue)]
    assert all(0 < life <= 100_000 for life in lives), "PITFALL 5: the queue has no TTL"


@cases.pitfall(5, goes_to_the_end=lua("locks/acquire", "if ticket then\n  write(", "if false then\n  write("))
async def a_waiter_that_asks_again_has_one_place_and_keeps_it(world: World):
    client = await world.client()
    await client.lock("a").acquire()
    ranks = [(await ask(client, "a", f"{who}.x", lease=30))[1] for who in ("one", "two", "one", "two", "three")]
    assert ranks == [0, 1, 0, 1, 2], "PITFALL 5: asking again costs the place in the queue, or takes a second one"


# -- 7: a reply that never came -------------------------------------------------------------------------------------


@cases.pitfall(
    7,
    not_recognised=lua(
        *("locks/acquire", "if hold then\n  local deadline, w", "if false then\n  local deadline, w"),
        *("locks/acquire", "  hold = call('HGET', K[1], 'h:' .. token)\n  if hold then", "  if false then"),
    ),
)
async def nobody_waits_for_itself_after_a_lost_reply(world: World):
    proxy = world.proxy()
    subject = await world.client(proxy.url)
    await (await subject.lock("a").acquire()).release()  # so that the next request is not answered with NOSCRIPT
    for wait in (0, 1):
        proxy.drop_replies(1, match=b"EVALSHA")
        lease = await attempt(subject.lock("a"), wait=wait)
        assert lease is not None, "PITFALL 7: granted, the reply was lost, and the caller takes itself for another"
        await lease.release()
    assert proxy.replies_dropped == 2


# -- 11: the gap between asking and listening -----------------------------------------------------------------------

_listen = AsyncDriver._listen


async def _listen_and_say_nothing(driver: AsyncDriver, effect):
    await _listen(driver, effect)
    return False


@cases.pitfall(11, not_asked_again=patch(AsyncDriver, "_listen", _listen_and_say_nothing))
async def a_release_between_the_request_and_the_subscription_is_not_missed(world: World):
    holder, waiter = await world.client(waiter_lease=60), await world.client(waiter_lease=60)
    lease = await holder.lock("a").acquire()
    hub = waiter._open.hub
    subscribe = hub.listen

    async def late(tag, channel):
        await lease.release()
        return await subscribe(tag, channel)

    world.patch.setattr(hub, "listen", late)
    got = await must(waiter.lock("a").acquire(), "PITFALL 11: the waiter sleeps, and the lock is free", within=0.6)
    assert got.fence > lease.fence


# -- 12: the herd ---------------------------------------------------------------------------------------------------


async def commands_per_hand_over(world: World, number: int) -> float:
    """With so many waiters in one process, each of which takes its turn and lets go."""
    client, server = await world.client(waiter_lease=60), world.redis()
    lease = await client.lock("a").acquire()

    async def turn():
        async with client.lock("a"):
            await asyncio.sleep(0)

    turns = [world.start(turn()) for _ in range(number)]

    def all_asleep():
        return len([slot for slot in client._core.mailbox._slots.values() if callable(slot)]) == number

    await until(all_asleep, what="everybody waiting for a signal")
    server.config_resetstat()
    await lease.release()
    await asyncio.gather(*turns)
    return server.info("commandstats")["cmdstat_evalsha"]["calls"] / number


@cases.pitfall(
    12,
    everybody_woken=lua(
        "locks/_queue",
        "if queue and used < limit then pump(channels, nil, true, gone) end",
        """if queue and used < limit then pump(channels, nil, true, gone) end
  for _, waiter in ipairs(call('ZRANGE', K[2], 0, -1)) do tell(channels, waiter, 'try ' .. waiter) end""",
    ),
)
async def a_hand_over_costs_the_same_with_more_waiters(world: World):
    few, many = await commands_per_hand_over(world, 8), await commands_per_hand_over(world, 32)
    assert many <= few + 1, f"PITFALL 12: {few} commands per hand-over with 8 waiters, {many} with 32"


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
