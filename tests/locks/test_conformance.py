"""What a lock promises, on every kind of server, on asyncio and on threads."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast import ConfigurationError, Fenced, LeaseLost, NotAcquired, NotReplicated, WouldDeadlock
from holdfast.locks.spec import place
from holdfast.observe import Counters
from support.actors import Fleet
from support.backends import Backend
from support.conditions import until


async def queue_up(actors, name, **options):
    """Start an acquire by each actor in turn, each one in the queue before the next."""
    pending = []
    for number, actor in enumerate(actors, 1):
        pending.append(actor.start(lambda hf: hf.lock(name, **options).acquire()))
        await until(lambda n=number: waiting(actors[0], name, n), what=f"{number} in the queue")
        await until(lambda a=actor: hears(a, name), within=20, what="its subscription")
    return pending


def hears(actor, name, kind="lock"):
    """Who waits and does not listen yet is passed over, as one that died: tests of order must not be that quick."""
    core = actor.hf._core
    driver = actor.hf._open if hasattr(actor.hf._open, "hub") else getattr(core.keeper, "_driver", None)
    return driver is not None and driver.hub.listening(place(core, kind, name).channels + core.client_id)


async def waiting(actor, name, count):
    info = actor.hf.inspect(name)
    info = await info if asyncio.iscoroutine(info) else info
    return info.waiting == count


# -- one at a time --------------------------------------------------------------------------------------------------


async def test_one_holder_at_a_time(fleet: Fleet):
    # Given five callers, two of them in one process, that all read, yield and write the same counter
    first = await fleet.actor()
    actors = [first, await fleet.actor(first.hf), *await fleet.actors(3)]
    state = {"value": 0, "inside": 0, "most": 0}

    def step_async(hf):
        async def go():
            for _ in range(10):
                async with hf.lock("counter", ttl=10):
                    enter(), await asyncio.sleep(0), leave(state["value"])

        return go()

    def step_sync(hf):
        for _ in range(10):
            with hf.lock("counter", ttl=10):
                enter(), time.sleep(0.0002), leave(state["value"])

    def enter():
        state["inside"] += 1
        state["most"] = max(state["most"], state["inside"])

    def leave(seen):
        state["value"] = seen + 1
        state["inside"] -= 1

    # when all of them run
    await asyncio.gather(*[a.do(step_async if fleet.api == "async" else step_sync) for a in actors])
    # expect no lost update and never two inside
    assert state == {"value": 50, "inside": 0, "most": 1}


async def test_try_answers_none_while_held_and_a_lease_when_free(fleet: Fleet):
    holder, other = await fleet.actors(2)
    lease = await holder.do(lambda hf: hf.lock("a").acquire())
    assert await other.do(lambda hf: hf.lock("a").try_acquire()) is None
    await holder.do(lambda _: lease.release())
    got = await other.do(lambda hf: hf.lock("a").try_acquire())
    assert got.fence > lease.fence
    await other.do(lambda _: got.release())


async def test_a_wait_that_runs_out_leaves_nothing_behind(fleet: Fleet):
    holder, other = await fleet.actors(2)
    lease = await holder.do(lambda hf: hf.lock("a").acquire())
    started = time.monotonic()
    with pytest.raises(NotAcquired, match="wait ran out"):
        await other.do(lambda hf: hf.lock("a").acquire(wait=0.2))
    assert 0.2 <= time.monotonic() - started < 2
    assert await waiting(holder, "a", 0)
    await holder.do(lambda _: lease.release())


async def test_waiters_are_served_in_order_and_the_release_hands_over(fleet: Fleet):
    # Given a holder and three waiters in a known order
    holder, *waiters = await fleet.actors(4)
    lease = await holder.do(lambda hf: hf.lock("a").acquire())
    pending = await queue_up(waiters, "a")
    # when each in turn releases, expect the next one to hold it, and only that one
    fences = [lease.fence]
    for number, (actor, future) in enumerate(zip(waiters, pending, strict=True)):
        await (holder if number == 0 else waiters[number - 1]).do(lambda _, lease=lease: lease.release())
        lease = await asyncio.wait_for(future, 20)
        fences.append(lease.fence)
        assert [f.done() for f in pending] == [True] * (number + 1) + [False] * (2 - number)
        assert actor
    assert fences == sorted(set(fences))
    await waiters[-1].do(lambda _: lease.release())


async def test_a_newcomer_does_not_pass_the_queue_but_a_barging_one_may(fleet: Fleet):
    holder, first, newcomer = await fleet.actors(3)
    lease = await holder.do(lambda hf: hf.lock("a", fair=False).acquire())
    (pending,) = await queue_up([first], "a", fair=False)
    # a barging waiter is woken, not granted to: whoever asks first has it
    await holder.do(lambda _: lease.release())
    mine = await newcomer.do(lambda hf: hf.lock("a", fair=False).try_acquire())
    if mine is not None:
        await newcomer.do(lambda _: mine.release())
    theirs = await asyncio.wait_for(pending, 20)
    # a fair newcomer never gets in while somebody waits
    (behind,) = await queue_up([holder], "a")
    assert await newcomer.do(lambda hf: hf.lock("a").try_acquire()) is None
    await first.do(lambda _: theirs.release())
    got = await asyncio.wait_for(behind, 20)
    await holder.do(lambda _: got.release())


# -- leases ---------------------------------------------------------------------------------------------------------


async def test_a_lease_is_renewed_past_its_ttl(fleet: Fleet):
    holder, other = await fleet.actors(2)
    lease = await holder.do(lambda hf: hf.lock("a", ttl=1.0).acquire())
    fence, started = lease.fence, time.monotonic()
    await until(lambda: time.monotonic() - started > 1.5)
    assert not lease.lost
    assert lease.fence == fence
    assert await other.do(lambda hf: hf.lock("a").try_acquire()) is None
    await holder.do(lambda _: lease.release())


async def test_a_lease_that_is_not_renewed_is_lost_and_taken_over(fleet: Fleet):
    counters = Counters()
    holder, other = await fleet.actor(), await fleet.actor(observers=[counters])
    lease = await holder.do(lambda hf: hf.lock("a", ttl=0.3, renew=False).acquire())
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    lease.on_lost(lambda: loop.call_soon_threadsafe(told.set))
    started = time.monotonic()
    got = await other.do(lambda hf: hf.lock("a", ttl=5).acquire(wait=5))
    assert time.monotonic() - started < 0.3 + 1
    await asyncio.wait_for(told.wait(), 20)
    assert lease.lost
    assert lease.lost_reason == "expired"
    assert lease.remaining() == 0.0
    assert got.fence > lease.fence
    assert (counters["taken_over"], counters["expired"]) == (1, 1)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        await holder.do(lambda _: lease.release())
    # the late release of the old holder took nothing from the new one (PITFALL 1)
    info = await other.do(lambda hf: hf.inspect("a"))
    assert [h.fence for h in info.holders] == [got.fence]
    await other.do(lambda _: got.release())


async def test_max_hold_ends_a_hung_holder(fleet: Fleet):
    holder, other = await fleet.actors(2)
    lease = await holder.do(lambda hf: hf.lock("a", ttl=0.9, max_hold=1.2).acquire())
    started = time.monotonic()
    got = await other.do(lambda hf: hf.lock("a").acquire(wait=5))
    assert 0.9 < time.monotonic() - started < 3
    await until(lambda: lease.lost_reason == "max_hold")
    await other.do(lambda _: got.release())


async def test_max_hold_bounds_the_server_too(fleet: Fleet):
    """The holder may hang with its keeper: then nobody here ends it."""
    holder, other = await fleet.actors(2)
    lease = await holder.do(lambda hf: hf.lock("a", ttl=30, max_hold=0.4).acquire())
    info = await other.do(lambda hf: hf.inspect("a"))
    assert info.holders[0].remaining <= 0.4
    got = await other.do(lambda hf: hf.lock("a").acquire(wait=5))
    assert got.fence > lease.fence
    await other.do(lambda _: got.release())


async def test_a_hand_over_to_a_short_lease_arrives_alive(fleet: Fleet):
    """A hand-over counts from the last time the waiter asked, so it must have asked not long ago."""
    holder, waiter = await fleet.actors(2)
    lease = await holder.do(lambda hf: hf.lock("a").acquire())
    started = time.monotonic()
    pending = waiter.start(lambda hf: hf.lock("a", ttl=1.0).acquire())
    await until(lambda: time.monotonic() - started > 1.2)
    await holder.do(lambda _: lease.release())
    got = await asyncio.wait_for(pending, 20)
    assert got.remaining() > 0.2
    arrived = time.monotonic()
    await until(lambda: time.monotonic() - arrived > 1.3)
    assert not got.lost
    await waiter.do(lambda _: got.release())


@pytest.mark.parametrize("by", ["lock", "lease"])
async def test_loss_reaches_the_body(fleet: Fleet, by: str):
    """On asyncio it is cancelled; on threads it sees `lost`. Both get LeaseLost where it ends."""
    holder, operator = await fleet.actors(2)
    seen = {}

    def body_async(hf):
        async def go():
            lock = hf.lock("a", ttl=1.5)
            async with lock if by == "lock" else await lock.acquire() as lease:
                seen["lease"] = lease
                try:
                    await asyncio.sleep(30)
                finally:
                    seen["ended"] = time.monotonic()

        return go()

    def body_sync(hf):
        lock = hf.lock("a", ttl=1.5)
        with lock if by == "lock" else lock.acquire() as lease:
            seen["lease"] = lease
            lease.wait_lost(30)
            seen["ended"] = time.monotonic()

    running = holder.start(body_async if fleet.api == "async" else body_sync)
    await until(lambda: "lease" in seen)
    forced = time.monotonic()
    assert await operator.do(lambda hf: hf.force_release("a", reason="test")) == 1
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(running, 10)
    assert seen["ended"] - forced < 5
    assert seen["lease"].lost_reason in ("forced", "taken away")


async def test_an_error_in_the_body_releases_and_is_not_hidden(fleet: Fleet):
    (actor,) = await fleet.actors(1)
    lock = actor.hf.lock("a")
    lease = await actor.enter(lock)
    await actor.leave(lock, KeyError("mine"))
    assert lease.released
    assert not (await actor.do(lambda hf: hf.inspect("a"))).held


async def test_closing_releases_what_is_still_held(fleet: Fleet):
    holder, other = await fleet.actors(2)
    lease = await holder.do(lambda hf: hf.lock("a", ttl=60).acquire())
    await fleet.close_client(holder.hf)
    got = await other.do(lambda hf: hf.lock("a").try_acquire())
    assert got is not None
    assert lease.remaining() == 0.0
    await other.do(lambda _: got.release())


async def test_a_lease_that_nobody_can_release_is_not_renewed(fleet: Fleet):
    """PITFALL 9: renewal goes on after its owner is gone."""
    holder, other = await fleet.actors(2)
    await holder.do(lambda hf: hf.lock("a", ttl=0.3).acquire())  # the lease is dropped at once
    got = await other.do(lambda hf: hf.lock("a").acquire(wait=5))
    await other.do(lambda _: got.release())


# -- re-entry -------------------------------------------------------------------------------------------------------


async def test_the_same_owner_may_enter_again_and_leaves_as_often(fleet: Fleet):
    holder, other = await fleet.actors(2)
    outer = await holder.do(lambda hf: hf.lock("a").acquire())
    inner = await holder.do(lambda hf: hf.lock("a").acquire())
    assert inner.fence == outer.fence
    await holder.do(lambda _: inner.release())
    assert await other.do(lambda hf: hf.lock("a").try_acquire()) is None
    await holder.do(lambda _: outer.release())
    got = await other.do(lambda hf: hf.lock("a").try_acquire())
    await other.do(lambda _: got.release())


async def test_two_owners_of_one_client_exclude_each_other(fleet: Fleet):
    """PITFALL 4: identity per process lets two tasks in."""
    one = await fleet.actor()
    two = await fleet.actor(one.hf)
    lease = await one.do(lambda hf: hf.lock("a").acquire())
    assert await two.do(lambda hf: hf.lock("a").try_acquire()) is None
    await one.do(lambda _: lease.release())


# -- read/write -----------------------------------------------------------------------------------------------------


async def test_readers_share_and_a_writer_is_alone(fleet: Fleet):
    one, two, writer = await fleet.actors(3)
    r1 = await one.do(lambda hf: hf.rwlock("a").read().acquire())
    r2 = await two.do(lambda hf: hf.rwlock("a").read().acquire())
    assert await writer.do(lambda hf: hf.rwlock("a").write().try_acquire()) is None
    await one.do(lambda _: r1.release())
    await two.do(lambda _: r2.release())
    w = await writer.do(lambda hf: hf.rwlock("a").write().acquire())
    assert await one.do(lambda hf: hf.rwlock("a").read().try_acquire()) is None
    assert w.fence > r2.fence > r1.fence
    await writer.do(lambda _: w.release())


async def test_a_waiting_writer_stops_later_readers_and_then_readers_enter_together(fleet: Fleet):
    one, two, three, writer = await fleet.actors(4)
    r1 = await one.do(lambda hf: hf.rwlock("a").read().acquire())

    async def queued(count):
        return (await one.do(lambda hf: hf.inspect("a", "rw"))).waiting == count

    writing = writer.start(lambda hf: hf.rwlock("a").write().acquire())
    await until(lambda: queued(1))
    await until(lambda: hears(writer, "a", "rw"), within=20)
    reading = [a.start(lambda hf: hf.rwlock("a").read().acquire()) for a in (two, three)]
    await until(lambda: queued(3))
    await until(lambda: hears(two, "a", "rw") and hears(three, "a", "rw"), within=20)
    await one.do(lambda _: r1.release())
    w = await asyncio.wait_for(writing, 20)
    assert not any(r.done() for r in reading)
    await writer.do(lambda _: w.release())
    r2, r3 = await asyncio.wait_for(asyncio.gather(*reading), 20)
    await two.do(lambda _: r2.release())
    await three.do(lambda _: r3.release())


async def test_read_then_write_by_the_same_owner_is_refused_and_write_then_read_is_not(fleet: Fleet):
    (actor,) = await fleet.actors(1)
    reading = await actor.do(lambda hf: hf.rwlock("a").read().acquire())
    with pytest.raises(WouldDeadlock):
        await actor.do(lambda hf: hf.rwlock("a").write().acquire())
    await actor.do(lambda _: reading.release())
    writing = await actor.do(lambda hf: hf.rwlock("a").write().acquire())
    inner = await actor.do(lambda hf: hf.rwlock("a").read().acquire())
    assert inner.fence == writing.fence
    await actor.do(lambda _: inner.release())
    await actor.do(lambda _: writing.release())


# -- semaphores -----------------------------------------------------------------------------------------------------


async def test_a_semaphore_admits_as_many_as_it_has_permits(fleet: Fleet):
    actors = await fleet.actors(3)
    one = await actors[0].do(lambda hf: hf.semaphore("s", 3, take=2).acquire())
    two = await actors[1].do(lambda hf: hf.semaphore("s", 3).acquire())
    assert await actors[2].do(lambda hf: hf.semaphore("s", 3).try_acquire()) is None
    await actors[0].do(lambda _: one.release())
    three = await actors[2].do(lambda hf: hf.semaphore("s", 3, take=2).acquire())
    info = await actors[0].do(lambda hf: hf.inspect("s", "sem"))
    assert (info.permits, info.free, len(info.holders)) == (3, 0, 2)
    await actors[1].do(lambda _: two.release())
    await actors[2].do(lambda _: three.release())


async def test_permits_of_a_dead_holder_come_back(fleet: Fleet):
    dead, alive, other = await fleet.actors(3)
    gone = await dead.do(lambda hf: hf.semaphore("s", 2, ttl=0.3, renew=False).acquire())
    kept = await alive.do(lambda hf: hf.semaphore("s", 2, ttl=30).acquire())
    got = await other.do(lambda hf: hf.semaphore("s", 2).acquire(wait=5))
    assert not kept.lost
    assert got.fence > gone.fence
    await alive.do(lambda _: kept.release())
    await other.do(lambda _: got.release())


# -- many -----------------------------------------------------------------------------------------------------------


async def test_batch_acquire_answers_each_in_order(fleet: Fleet):
    holder, other = await fleet.actors(2)
    taken = await holder.do(lambda hf: hf.lock("n3").acquire())
    names = [f"n{i}" for i in range(20)]
    leases = await other.do(lambda hf: hf.acquire_many(names))
    assert [lease is None for lease in leases] == [name == "n3" for name in names]
    assert [lease.name for lease in leases if lease] == [n for n in names if n != "n3"]
    for lease in leases:
        if lease:
            await other.do(lambda _, lease=lease: lease.release())
    await holder.do(lambda _: taken.release())


async def test_all_or_none_without_deadlock(fleet: Fleet):
    # Given callers that name the same locks in different orders
    actors = await fleet.actors(4)
    names = ["a", "b", "c", "d", "e"]
    inside = dict.fromkeys(names, 0)
    most = []

    def enter(wanted):
        for name in wanted:
            inside[name] += 1
        most.append(max(inside.values()))

    def leave(wanted):
        for name in wanted:
            inside[name] -= 1

    def work(number):
        wanted = (names[number:] + names[:number])[:3]

        async def go(hf):
            for _ in range(5):
                async with hf.lock_all(wanted, wait=15) as leases:
                    assert [lease.name for lease in leases] == wanted
                    enter(wanted), await asyncio.sleep(0), leave(wanted)

        def go_blocking(hf):
            for _ in range(5):
                with hf.lock_all(wanted, wait=15):
                    enter(wanted), leave(wanted)

        return go if fleet.api == "async" else go_blocking

    await asyncio.gather(*[actor.do(work(n), timeout=30) for n, actor in enumerate(actors)])
    assert max(most) == 1
    assert len(most) == 20


async def test_a_name_twice_counts_once_together_and_is_taken_the_second_time_in_a_batch(fleet: Fleet):
    (actor,) = await fleet.actors(1)
    leases = await actor.do(lambda hf: hf.lock_all(["a", "a", "b"]).acquire())
    assert [lease.name for lease in leases] == ["a", "b"]
    for lease in leases:
        await actor.do(lambda _, lease=lease: lease.release())
    first, second = await actor.do(lambda hf: hf.acquire_many(["a", "a"]))
    assert second is None
    with pytest.raises(ConfigurationError):
        await actor.do(lambda hf: hf.acquire_many("ab"))
    await actor.do(lambda _: first.release())


async def test_asking_with_others_for_what_is_held_is_refused(fleet: Fleet):
    (actor,) = await fleet.actors(1)
    lease = await actor.do(lambda hf: hf.lock("a").acquire())
    with pytest.raises(WouldDeadlock):
        await actor.do(lambda hf: hf.lock_all(["b", "a"]).acquire())
    await actor.do(lambda _: lease.release())


async def test_all_or_none_gives_back_what_it_had(fleet: Fleet):
    holder, other = await fleet.actors(2)
    taken = await holder.do(lambda hf: hf.lock("b").acquire())
    with pytest.raises(NotAcquired):
        await other.do(lambda hf: hf.lock_all(["a", "b", "c"]).acquire(wait=0.1))
    for name in ("a", "c"):
        lease = await holder.do(lambda hf, name=name: hf.lock(name).try_acquire())
        assert lease is not None, f"{name} was still held when the error was raised"
        await holder.do(lambda _, lease=lease: lease.release())
    await holder.do(lambda _: taken.release())


# -- operating ------------------------------------------------------------------------------------------------------


async def test_inspection_tells_who_holds_and_who_waits(fleet: Fleet):
    holder, other = await fleet.actor(name="alpha worker"), await fleet.actor(name="beta")
    lease = await holder.do(lambda hf: hf.lock("a", ttl=20).acquire())
    (pending,) = await queue_up([other], "a")
    info = await holder.do(lambda hf: hf.lock("a").inspect())
    (who,) = info.holders
    assert (who.label, who.fence, info.kind, info.waiting) == ("alpha worker", lease.fence, "lock", 1)
    assert 0 <= who.age < 20
    assert 0 < who.remaining <= 20
    assert [w.label for w in info.waiters] == ["beta"]
    found = await other_listing(holder)
    assert [(i.name, i.held) for i in found] == [("a", True)]
    await holder.do(lambda _: lease.release())
    got = await asyncio.wait_for(pending, 20)
    await other.do(lambda _: got.release())
    assert await other_listing(holder) == []


async def other_listing(actor):
    return await actor.do(lambda hf: hf.list_locks())


async def test_forced_release_is_audited_and_hands_over(fleet: Fleet):
    holder, other, operator = await fleet.actors(3)
    lease = await holder.do(lambda hf: hf.lock("a", ttl=30).acquire())
    (pending,) = await queue_up([other], "a")
    assert await operator.do(lambda hf: hf.force_release("a", reason="x", fence=lease.fence + 1)) == 0
    assert await operator.do(lambda hf: hf.lock("a").force_release(reason="stuck", by="ann", fence=lease.fence)) == 1
    got = await asyncio.wait_for(pending, 20)
    (entry,) = await operator.do(lambda hf: hf.audit("a"))
    assert (entry.reason, entry.by, entry.fences, entry.kind, entry.name) == (
        "stuck",
        "ann",
        (lease.fence,),
        "lock",
        "a",
    )
    with pytest.raises(LeaseLost):
        await holder.do(lambda _: lease.release())
    assert not got.lost
    with pytest.raises(ConfigurationError, match="reason"):
        await operator.do(lambda hf: hf.force_release("a", reason=""))
    await other.do(lambda _: got.release())


async def test_busy_may_be_old_but_free_never_is(fleet: Fleet):
    holder, other = await fleet.actors(2)
    lock = other.hf.lock("a")
    assert await other.do(lambda _: lock.busy()) is False
    lease = await holder.do(lambda hf: hf.lock("a").acquire())
    assert await other.do(lambda _: lock.busy(max_age=60)) is True
    await holder.do(lambda _: lease.release())
    assert await other.do(lambda _: lock.busy(max_age=60)) is True  # from the cache, allowed
    assert await other.do(lambda _: lock.busy(max_age=0)) is False
    again = await holder.do(lambda hf: hf.lock("a").acquire())
    assert await other.do(lambda _: lock.busy(max_age=60)) is True  # "free" was not cached
    await holder.do(lambda _: again.release())


async def test_a_guarded_write_refuses_an_older_fence(fleet: Fleet):
    old, new = await fleet.actors(2)
    first = await old.do(lambda hf: hf.lock("a", ttl=0.2, renew=False).acquire())
    second = await new.do(lambda hf: hf.lock("a").acquire(wait=5))
    key = old.hf.guard_key("a", "value")
    await new.do(lambda hf: hf.guarded("a", second, ("SET", key, "new", "EX", 60), ("INCR", key + "n")))
    with pytest.raises(Fenced):
        await old.do(lambda hf: hf.guarded("a", first, ("SET", key, "old")))
    answers = await new.do(lambda hf: hf.guarded("a", second, ("GET", key), ("DEL", key, key + "n")))
    assert answers == [b"new", 2]
    await new.do(lambda _: second.release())


async def test_replicas_confirm_or_the_lock_is_given_back(fleet: Fleet, backend: Backend):
    (actor,) = await fleet.actors(1)
    if backend.kind in ("sentinel", "cluster"):
        lease = await actor.do(lambda hf: hf.lock("a", replicas=1, replica_timeout=5).acquire())
        await actor.do(lambda _: lease.release())
    with pytest.raises(NotReplicated):
        await actor.do(lambda hf: hf.lock("b", replicas=9, replica_timeout=0.05).acquire())
    await until(lambda: waiting_free(actor, "b"))


async def waiting_free(actor, name):
    return not (await actor.do(lambda hf: hf.inspect(name))).held


async def test_ids_of_every_kind_are_apart(fleet: Fleet):
    (actor,) = await fleet.actors(1)
    names = ["a:b", "a%3ab", "a\nb", "{a}", "}a{", "*", "a b", "\x00", "é", "e\u0301", "\ud800", b"\xff\xfe", "☃" * 170]
    leases = await actor.do(lambda hf: hf.acquire_many(names, ttl=20))
    assert all(leases)
    assert len({lease.token for lease in leases}) == len(names)
    listed = await actor.do(lambda hf: hf.list_locks())
    assert {info.name for info in listed} == set(names)
    for lease in leases:
        await actor.do(lambda _, lease=lease: lease.release())


async def test_bad_arguments_are_refused_before_anything_is_sent(fleet: Fleet):
    (actor,) = await fleet.actors(1)
    hf = actor.hf
    for wrong in (
        lambda: hf.lock(""),
        lambda: hf.lock("x" * 513),
        lambda: hf.lock(7),
        lambda: hf.lock("a", ttl=0),
        lambda: hf.lock("a", ttl=-1),
        lambda: hf.lock("a", ttl=float("nan")),
        lambda: hf.lock("a", ttl="forever"),
        lambda: hf.lock("a", wait=-0.5),
        lambda: hf.lock("a", max_hold=0),
        lambda: hf.lock("a", replicas=-1),
        lambda: hf.semaphore("a", 0),
        lambda: hf.semaphore("a", 2, take=3),
        lambda: hf.lock_all("abc"),
    ):
        with pytest.raises(ConfigurationError):
            wrong()


async def test_ttl_classes(fleet: Fleet):
    (actor,) = await fleet.actors(1)
    for ttl, seconds in (("short", 300), ("medium", 1800), ("long", 7200)):
        lease = await actor.do(lambda hf, ttl=ttl: hf.lock("a", ttl=ttl).acquire())
        assert seconds - 5 < lease.remaining() <= seconds
        await actor.do(lambda _, lease=lease: lease.release())


async def test_the_decorator_locks_by_the_calls_arguments(fleet: Fleet):
    one, two = await fleet.actors(2)
    seen = []

    def decorated(hf):
        if fleet.api == "async":

            @hf.exclusive("user:{user_id}", wait=0)
            async def work(user_id, nap=0):
                seen.append((user_id, [i.name for i in await hf.list_locks()]))
                return user_id

        else:

            @hf.exclusive("user:{user_id}", wait=0)
            def work(user_id, nap=0):
                seen.append((user_id, [i.name for i in hf.list_locks()]))
                return user_id

        return work(7)

    assert await one.do(decorated) == 7
    assert seen == [(7, ["user:7"])]
    lease = await two.do(lambda hf: hf.lock("user:7").acquire())
    with pytest.raises(NotAcquired):
        await one.do(decorated)
    await two.do(lambda _: lease.release())
