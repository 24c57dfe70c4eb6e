"""PITFALLS 1, 3, 4, 6, 8, 9, 10, 14, 17: each check holds, and fails with the bug put back."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from holdfast import LeaseLost, NotAcquired, NotReplicated
from holdfast.engine import keeper as keeper_module
from holdfast.engine.aio import AsyncDriver
from holdfast.engine.core import Core
from holdfast.engine.flow import Detach, call
from holdfast.engine.keeper import Hold, Keeper
from holdfast.engine.mux import MuxConnection
from holdfast.engine.threads import ThreadDriver
from holdfast.events import Lost, Released, Renewed
from holdfast.locks.lease import Lease
from support.actors import ThreadActor
from support.backends import Backends
from support.conditions import patiently, until
from support.faults import Plan, install
from support.mutants import (
    Case,
    Pitfalls,
    World,
    attempt,
    fails,
    fences,
    holds,
    lua,
    must,
    patch,
    place_of,
    settled,
)

cases = Pitfalls()

FREES_WHOEVER_HOLDS = lua(
    "locks/release",
    "local token = ARGV[1]\n",
    """local token = ARGV[1]
for _, field in ipairs(call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 2) == 'h:' then token = string.sub(field, 3) end
end
""",
)


# -- 1: whose lock is freed -----------------------------------------------------------------------------------------


@cases.pitfall(1, token_not_compared=FREES_WHOEVER_HOLDS)
async def an_expired_holder_does_not_free_its_successors_lock(world: World):
    first, second = await world.client(), await world.client()
    old = await first.lock("a", ttl=0.2, renew=False).acquire()
    new = await second.lock("a").acquire(wait=5)
    with contextlib.suppress(LeaseLost):
        await old.release()
    await settled(first)
    assert fences(await second.inspect("a")) == [new.fence], "PITFALL 1: an expired holder freed its successor's lock"


@cases.pitfall(1, token_not_compared=FREES_WHOEVER_HOLDS)
async def a_loser_does_not_free_the_winners_lock(world: World):
    winner, loser = await world.client(), await world.client()
    lease = await winner.lock("a").acquire()
    with pytest.raises(NotAcquired):
        await loser.lock("a").acquire(wait=0.05)
    assert fences(await winner.inspect("a")) == [lease.fence], "PITFALL 1: a loser freed the winner's lock"


# -- 3: work that lasts longer than the lease -----------------------------------------------------------------------


@cases.pitfall(
    3,
    never_renewed=patch(Hold, "next_look", lambda hold: hold.deadline),
    marker_renewed_instead=lua(
        "locks/renew",
        "write('h:' .. token, hold_text(now + ttl, weight, fence, granted, ttl))",
        "call('HSET', K[1], 'marker', now + ttl)",
    ),
)
async def a_lease_lasts_as_long_as_the_work_under_it(world: World):
    holder, other = await world.client(), await world.client()
    lease = await holder.lock("a", ttl=1).acquire()
    second = await attempt(other.lock("a"), wait=1.6)
    assert second is None, "PITFALL 3: a second one got in while the first one worked"
    assert not lease.lost, "PITFALL 3: the lease ran out under its work"


# -- 4: who is who --------------------------------------------------------------------------------------------------


@cases.pitfall(4, owner_is_the_process=patch(AsyncDriver, "owner", lambda driver: "this process"))
async def two_tasks_of_one_process_exclude_each_other(world: World):
    client = await world.client()
    lease = await client.lock("a").acquire()
    second = await world.start(client.lock("a").try_acquire())
    assert second is None, "PITFALL 4: two tasks were let in, because they are one process"
    await lease.release()


@cases.pitfall(4, owner_is_the_process=patch(ThreadDriver, "owner", lambda driver: "this process"))
async def two_threads_of_one_process_exclude_each_other(world: World):
    client = await world.blocking()
    actors = [ThreadActor(client), ThreadActor(client)]
    try:
        leases = [await actor.do(lambda hf: hf.lock("a").try_acquire()) for actor in actors]
    finally:
        for actor in actors:
            await actor.stop()
    assert leases[0] is not None
    assert leases[1] is None, "PITFALL 4: two threads were let in, because they are one process"


@cases.pitfall(4, everybody_has_the_same_id=patch(Core, "new_token", lambda core: "instance.1"))
async def two_workers_exclude_each_other(world: World):
    one, two = await world.client(), await world.client()
    lease = await one.lock("a").acquire()
    second = await two.lock("a").try_acquire()
    assert second is None, "PITFALL 4: two workers were let in, because they have the same id"
    await lease.release()


# -- 6: re-entry ----------------------------------------------------------------------------------------------------


@cases.pitfall(6, not_counted=patch(Lease, "_reenter", lambda lease, weight: not lease.lost))
async def the_inner_release_does_not_free_the_outer_lease(world: World):
    holder, other, server = await world.client(), await world.client(), world.redis()
    outer = await holder.lock("a").acquire()
    keys = set(server.scan_iter())
    inner = await holder.lock("a").acquire()
    assert inner.fence == outer.fence, "PITFALL 6: re-entry made a second grant"
    assert set(server.scan_iter()) == keys, "PITFALL 6: the count has a key of its own, with a life of its own"
    await inner.release()
    assert await other.lock("a").try_acquire() is None, "PITFALL 6: the inner release freed the outer lease"
    await outer.release()
    assert await other.lock("a").try_acquire() is not None, "PITFALL 6: the outer release did not free it"


# -- 8: cancellation ------------------------------------------------------------------------------------------------

_do = AsyncDriver._do


async def _without_detach(driver: AsyncDriver, effect):
    if isinstance(effect, Detach):
        effect.flow.close()
        return None
    return await _do(driver, effect)


NOTHING_GIVEN_BACK = patch(AsyncDriver, "_do", _without_detach)


@cases.pitfall(8, nothing_given_back=NOTHING_GIVEN_BACK)
async def a_cancelled_acquire_leaves_no_lock_behind(world: World):
    proxy, other = world.proxy(), await world.client()
    subject = await world.client(proxy.url)
    proxy.delay(0.4, direction="replies")
    acquiring = world.start(subject.lock("a").acquire())

    async def granted():
        return (await other.inspect("a")).held

    async def free():
        return not await granted()

    await until(granted, what="the grant, of which the caller has not heard yet")
    acquiring.cancel()
    await until(free, within=0.6, what="PITFALL 8: a release of the lock that nobody owns")


@cases.pitfall(8, nothing_given_back=NOTHING_GIVEN_BACK)
async def a_cancelled_release_still_releases(world: World):
    subject, other = await world.client(), await world.client()
    lease = await subject.lock("a").acquire()
    install(subject, Plan({0: "cancel before"}, asyncio.CancelledError))
    with pytest.raises(asyncio.CancelledError):
        await lease.release()
    await settled(subject)
    assert not (await other.inspect("a")).held, "PITFALL 8: a cancelled release left the lock held"


_send = MuxConnection.send


def _send_and_leave_the_line(connection: MuxConnection, *args, **options):
    future = _send(connection, *args, **options)
    pending = connection._line[-1]

    def done(ended: asyncio.Future):
        if ended.cancelled() and pending in connection._line:
            connection._line.remove(pending)

    future.add_done_callback(done)
    return future


@cases.pitfall(8, leaves_the_line=patch(MuxConnection, "send", _send_and_leave_the_line))
async def a_cancelled_call_does_not_poison_the_connection(world: World):
    # Given one caller that is cancelled between its request and its reply
    proxy, holder = world.proxy(), await world.client()
    subject = await world.client(proxy.url)
    await holder.lock("held").acquire()
    await subject.inspect("held")
    proxy.delay(0.3, direction="replies")
    sent = proxy.requests_forwarded
    first = world.start(subject.inspect("held"))
    await until(lambda: proxy.requests_forwarded > sent)
    first.cancel()
    # when the next caller uses the same connection, expect it to get its own reply
    info = await must(subject.inspect("free"), "PITFALL 8: the connection is of no use any more")
    assert not info.held, "PITFALL 8: a caller got the reply to somebody else's question"


# -- 9: the life of the renewing thread -----------------------------------------------------------------------------

_rebucket = Keeper._rebucket


def _dies_on_the_first_error(world: World) -> None:
    def once(*args, **options):
        return call(*args, **{**options, "until": 0.0})

    def only_after_success(keeper: Keeper, hold: Hold, deadline: float, span: float):
        if deadline > hold.deadline:
            _rebucket(keeper, hold, deadline, span)

    world.patch.setattr(keeper_module, "call", once)
    world.patch.setattr(Keeper, "_rebucket", only_after_success)


@cases.pitfall(9, dies_on_the_first_error=_dies_on_the_first_error)
async def renewal_survives_a_lost_connection(world: World):
    proxy, events = world.proxy(), []
    holder = await world.client(proxy.url, observers=[events.append])
    lease = await holder.lock("a", ttl=1.5).acquire()
    proxy.drop_replies(1, match=holder._core.scripts.get("locks/renew").sha)

    def renewed_twice():
        return lease.lost or len([e for e in events if isinstance(e, Renewed)]) >= 2

    await until(renewed_twice, what="PITFALL 9: a renewal after the one that failed")
    assert proxy.replies_dropped == 1
    assert not lease.lost, "PITFALL 9: one failed renewal was the last one"


def _goes_on_after_unlock(world: World) -> None:
    """The keeper is not told of the release, and does not see it."""
    look = Keeper._look

    def blind(keeper, due):
        due = list(due)
        for hold in due:
            hold.over = False
        look(keeper, due)

    world.patch.setattr(Keeper, "remove", lambda keeper, hold: None)
    world.patch.setattr(Keeper, "_look", blind)


@cases.pitfall(9, goes_on_after_unlock=_goes_on_after_unlock)
async def renewal_ends_with_the_release(world: World):
    events = []
    holder = await world.client(observers=[events.append])
    released, kept = await holder.lock("a", ttl=0.6).acquire(), await holder.lock("b", ttl=0.6).acquire()
    await released.release()

    def renewals_of(name):
        return [e for e in events if isinstance(e, Renewed) and e.name == name]

    await until(lambda: len(renewals_of("b")) >= 3, what="the lease that is kept renewed")
    after = events[[type(e) for e in events].index(Released) :]
    late = [e for e in after if isinstance(e, (Renewed, Lost)) and e.name == "a"]
    assert not late, "PITFALL 9: renewal went on after the release"
    await kept.release()


# -- 10: loss is pushed ---------------------------------------------------------------------------------------------


@cases.pitfall(10, nobody_told=patch(Hold, "watch", lambda hold, callback: lambda: None))
async def a_holder_is_told_of_its_loss_while_it_works(world: World):
    holder, operator = await world.client(), await world.client()
    entered, told = asyncio.Event(), threading.Event()

    async def work():
        async with holder.lock("a", ttl=0.9) as lease:
            lease.on_lost(told.set)
            entered.set()
            await asyncio.sleep(60)

    working = world.start(work())
    await entered.wait()
    await operator.force_release("a", reason="test")
    done, _ = await asyncio.wait([working], timeout=patiently(0.6))
    assert done, "PITFALL 10: the body went on under a lost lease"
    assert isinstance(working.exception(), LeaseLost), "PITFALL 10: the body ended without LeaseLost"
    await until(told.is_set, within=0.6, what="PITFALL 10: the callback")


@cases.pitfall(10, waits_for_the_server=patch(Keeper, "_lose", lambda keeper, hold, reason: None))
async def a_holder_that_cannot_reach_the_server_is_told_at_its_deadline(world: World):
    proxy, told = world.proxy(), threading.Event()
    holder = await world.client(proxy.url)
    lease = await holder.lock("a", ttl=0.6).acquire()
    lease.on_lost(told.set)
    proxy.black_hole()
    await until(told.is_set, within=1.3, what="PITFALL 10: word of the loss")


# -- 14: nothing comes back by itself -------------------------------------------------------------------------------


@cases.pitfall(14, made_anew=lua("locks/renew", "if deadline > now then", "if true then"))
async def renewal_does_not_make_a_missing_lock_again(world: World):
    holder, told = await world.client(), threading.Event()
    lease = await holder.lock("a", ttl=0.9).acquire()
    lease.on_lost(told.set)
    world.redis().delete(place_of(holder, "a").lock)
    await until(told.is_set, within=0.8, what="PITFALL 14: the loss of a lock that is gone")
    assert not (await holder.inspect("a")).held, "PITFALL 14: a renewal made the lock again"


@cases.pitfall(14, token_not_compared=FREES_WHOEVER_HOLDS)
async def too_few_replicas_give_back_only_what_is_ours(world: World):
    # Given a grant that expires, and is given to somebody else, while it waits for replicas that do not exist
    first, second = await world.client(), await world.client()
    lock = first.lock("a", ttl=0.3, replicas=9, replica_timeout=0.9)
    waiting = world.start(lock.acquire())

    async def granted():
        return (await second.inspect("a")).held

    await until(granted, what="the first grant")
    new = await second.lock("a").acquire(wait=5)
    # when it is given back, expect the other one to keep what it has
    with pytest.raises(NotReplicated):
        await waiting
    await settled(first)
    assert fences(await second.inspect("a")) == [new.fence], "PITFALL 14: the rollback freed somebody else's lock"


# -- 17: the winner's mark ------------------------------------------------------------------------------------------


@cases.pitfall(
    17,
    last_one_signs=lua(
        "locks/acquire",
        "if lease == 0 then return {'busy'",
        """for _, field in ipairs(call('HKEYS', K[1])) do
  if string.sub(field, 1, 2) == 'o:' then call('HSET', K[1], field, ARGV[7]) end
end
if lease == 0 then return {'busy'""",
    ),
)
async def a_loser_does_not_overwrite_the_winners_mark(world: World):
    winner, loser = await world.client(name="alpha"), await world.client(name="beta")
    lease = await winner.lock("a").acquire()
    assert await loser.lock("a").try_acquire() is None
    (who,) = (await loser.inspect("a")).holders
    assert (who.label, who.fence) == ("alpha", lease.fence), "PITFALL 17: the loser overwrote the winner's mark"


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
