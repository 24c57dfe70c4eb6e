"""At every step of every operation: reply dropped, connection cut, silence, caller cancelled.

Then: at most one holder, nothing leaked, the next caller served, fences still rising.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from holdfast import Fenced, Holdfast, HoldfastError, LeaseLost, NotAcquired, ServerError
from holdfast.engine.flow import Effect, Together
from holdfast.events import RenewFailed
from holdfast.sync import Holdfast as SyncHoldfast
from support.actors import Fleet
from support.backends import Backend
from support.conditions import until
from support.faults import FAULTS, Plan, every_pair, every_step, install

TTL = 0.6
QUICK = {"call_timeout": 0.3, "retry_for": 2.0, "waiter_lease": 0.6}


class World:
    """One subject whose operation meets the fault, and one bystander who looks at the result."""

    def __init__(self, fleet: Fleet, subject, bystander):
        self.fleet, self.subject, self.bystander = fleet, subject, bystander
        self.name = "a"

    async def held(self, kind="lock"):
        return await self.bystander.do(lambda hf: hf.inspect(self.name, kind))


async def free_acquire(w: World):
    return await w.subject.do(lambda hf: hf.lock(w.name, ttl=TTL).acquire(wait=5))


async def contended_acquire(w: World):
    """The holder lets go once the subject waits, so that the hand-over is part of the operation."""
    lease = await w.bystander.do(lambda hf: hf.lock(w.name, ttl=5).acquire(wait=5))
    pending = w.subject.start(lambda hf: hf.lock(w.name, ttl=TTL).acquire(wait=5))

    async def waits():
        return pending.done() or (await w.held()).waiting == 1

    try:
        await until(waits, within=5)
    finally:
        await w.bystander.do(lambda _: lease.release())
    return await asyncio.wait_for(pending, 10)


async def timed_out_acquire(w: World):
    lease = await w.bystander.do(lambda hf: hf.lock(w.name, ttl=5).acquire(wait=5))
    try:
        return await w.subject.do(lambda hf: hf.lock(w.name, ttl=TTL).acquire(wait=0.02))
    finally:
        await w.bystander.do(lambda _: lease.release())


async def acquire_and_release(w: World):
    lease = await w.subject.do(lambda hf: hf.lock(w.name, ttl=TTL).acquire(wait=5))
    await w.subject.do(lambda _: lease.release())


async def release_to_a_waiter(w: World):
    lease = await w.subject.do(lambda hf: hf.lock(w.name, ttl=TTL).acquire(wait=5))
    pending = w.bystander.start(lambda hf: hf.lock(w.name, ttl=5).acquire(wait=10))
    error = None
    try:
        await w.subject.do(lambda _: lease.release())
    except BaseException as problem:
        error = problem
    got = await asyncio.wait_for(pending, 10)
    assert got.fence > lease.fence
    await w.bystander.do(lambda _: got.release())
    if error:
        raise error


async def read_acquire(w: World):
    return await w.subject.do(lambda hf: hf.rwlock(w.name, ttl=TTL).read().acquire(wait=5))


async def permit_acquire(w: World):
    return await w.subject.do(lambda hf: hf.semaphore(w.name, 1, ttl=TTL).acquire(wait=5))


async def release_each(w: World, leases):
    """All of them, also when the fault strikes one."""
    for lease in leases:
        if lease is not None:
            with contextlib.suppress(HoldfastError, asyncio.CancelledError, KeyboardInterrupt):
                await w.subject.do(lambda _, lease=lease: lease.release())


async def all_acquire(w: World):
    leases = await w.subject.do(lambda hf: hf.lock_all([w.name, "b", "c"], ttl=TTL).acquire(wait=5))
    await release_each(w, leases)


async def batch_acquire(w: World):
    leases = await w.subject.do(lambda hf: hf.acquire_many([w.name, "b"], ttl=TTL))
    await release_each(w, leases)


async def try_busy(w: World):
    lease = await w.bystander.do(lambda hf: hf.lock(w.name, ttl=5).acquire(wait=5))
    try:
        assert await w.subject.do(lambda hf: hf.lock(w.name).try_acquire()) is None
        assert await w.subject.do(lambda hf: hf.lock(w.name).busy(0)) is True
    finally:
        await w.bystander.do(lambda _: lease.release())


OPERATIONS = {
    f.__name__: f
    for f in (
        free_acquire, contended_acquire, timed_out_acquire, acquire_and_release, release_to_a_waiter, read_acquire,
        permit_acquire, all_acquire, batch_acquire, try_busy,
    )
}  # fmt: skip
KINDS = {"read_acquire": "rw", "permit_acquire": "sem"}


async def run_with(fleet: Fleet, bystander, plan_of, operation: str) -> int:
    """One run of one operation with one plan. Answers how many of its faults were met."""
    client = await fleet.client(**QUICK)
    plan = plan_of()
    install(client, plan)
    subject = await fleet.actor(client)
    world = World(fleet, subject, bystander)
    kind = KINDS.get(operation, "lock")
    lease = None
    with contextlib.suppress(HoldfastError, asyncio.CancelledError, KeyboardInterrupt):
        lease = await OPERATIONS[operation](world)
    plan.faults = {}
    where = f"{operation} with {plan.hits}"
    if lease is not None and not lease.lost:
        # What the client believes and what the server knows agree, as long as the lease lasts: a slow machine may not
        # come to renew it.
        ends = time.monotonic() + lease.remaining()
        info = await world.held(kind)
        assert [h.fence for h in info.holders] == [lease.fence] or time.monotonic() > ends, where
        try:
            await subject.do(lambda _: lease.release())
        except LeaseLost:
            assert time.monotonic() > ends, where
    else:
        # Nothing stays: background work gives it back, and at the latest its time runs out.
        async def nothing_left():
            infos = [await bystander.do(lambda hf, n=n: hf.inspect(n, kind)) for n in ("a", "b", "c")]
            return not any(i.held or i.waiting for i in infos)

        await until(nothing_left, within=TTL + 1, what=f"free again: {where}")
    # The next caller is served, alone, with a higher fence.
    got = await bystander.do(lambda hf: _lock_of(hf, kind).acquire(wait=TTL + 1))
    assert lease is None or got.fence > lease.fence, where
    info = await world.held(kind)
    assert len([h for h in info.holders if h.remaining > 0]) == 1, where
    await bystander.do(lambda _: got.release())
    await subject.stop()
    fleet._actors.remove(subject)
    await fleet.close_client(client)
    return len(plan.hits)


def _lock_of(hf, kind):
    if kind == "rw":
        return hf.rwlock("a", ttl=5).write()
    return hf.semaphore("a", 1, ttl=5) if kind == "sem" else hf.lock("a", ttl=5)


@pytest.fixture
def one_backend(valkey: Backend) -> Backend:
    return valkey


@pytest.fixture
async def quick_fleet(one_backend: Backend, api: str):
    made = Fleet(one_backend.url, api)
    yield made
    await made.close()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_single_fault(quick_fleet: Fleet, api: str, operation: str, fault: str):
    bystander = await quick_fleet.actor()
    cancel = asyncio.CancelledError if api == "async" else KeyboardInterrupt
    steps = 0
    for faults in every_step(fault):
        if not await run_with(quick_fleet, bystander, lambda f=faults: Plan(f, cancel), operation):
            break
        steps += 1
    assert steps >= 1


@pytest.mark.parametrize("pair", [("reply dropped", "reply dropped"), ("reply dropped", "cancel after"),
                                  ("cut before", "cancel before"), ("silent", "silent")], ids=str)  # fmt: skip
@pytest.mark.parametrize("operation", ["free_acquire", "acquire_and_release"])
async def test_every_pair_of_faults(quick_fleet: Fleet, api: str, operation: str, pair):
    bystander = await quick_fleet.actor()
    cancel = asyncio.CancelledError if api == "async" else KeyboardInterrupt

    async def run(faults: dict[int, str]) -> int:
        return await run_with(quick_fleet, bystander, lambda: Plan(faults, cancel), operation)

    assert await every_pair(run, *pair, longest=5) >= 3


async def test_force_runs_once_although_its_reply_is_lost(quick_fleet: Fleet):
    """An operation that is not naturally repeatable carries an id: the second try must not end the next holder."""
    holder, after = await quick_fleet.actors(2)
    operator = await quick_fleet.client(**QUICK)
    lease = await holder.do(lambda hf: hf.lock("a", ttl=30).acquire())
    pending = after.start(lambda hf: hf.lock("a", ttl=30).acquire())

    async def queued():
        return (await holder.do(lambda hf: hf.inspect("a"))).waiting == 1

    await until(queued)
    plan = Plan({0: "reply dropped"}, KeyboardInterrupt)
    install(operator, plan)
    actor = await quick_fleet.actor(operator)
    assert await actor.do(lambda hf: hf.force_release("a", reason="test")) == 1
    assert plan.hits
    got = await asyncio.wait_for(pending, 5)
    assert not got.lost
    info = await holder.do(lambda hf: hf.inspect("a"))
    assert [h.fence for h in info.holders] == [got.fence]
    assert len(await actor.do(lambda hf: hf.audit("a"))) == 1
    await after.do(lambda _: got.release())
    with pytest.raises(HoldfastError):
        await holder.do(lambda _: lease.release())


async def test_a_guarded_increment_happens_once_although_its_reply_is_lost(quick_fleet: Fleet):
    client = await quick_fleet.client(**QUICK)
    plan = Plan({0: "reply dropped"}, KeyboardInterrupt)
    install(client, plan)
    actor = await quick_fleet.actor(client)
    key = client.guard_key("a", "n")
    await actor.do(lambda hf: hf.guarded("a", 5, ("INCR", key), ("EXPIRE", key, 60)))
    assert plan.hits
    assert (await actor.do(lambda hf: hf.guarded("a", 5, ("GET", key))))[0] == b"1"
    with pytest.raises(Fenced):
        await actor.do(lambda hf: hf.guarded("a", 4, ("INCR", key)))


async def test_a_guarded_command_that_fails_is_not_taken_for_done_although_its_reply_is_lost(quick_fleet: Fleet):
    client = await quick_fleet.client(**QUICK)
    actor = await quick_fleet.actor(client)
    key = client.guard_key("a", "text")
    await actor.do(lambda hf: hf.guarded("a", 1, ("SET", key, "text", "EX", 60)))
    with pytest.raises(ServerError, match="number 2 failed"):
        await actor.do(lambda hf: hf.guarded("a", 1, ("GET", key), ("INCR", key)))
    plan = Plan({0: "reply dropped"}, KeyboardInterrupt)
    install(client, plan)
    with pytest.raises(ServerError, match="lost with the first reply"):
        await actor.do(lambda hf: hf.guarded("a", 1, ("INCR", key)))
    assert plan.hits


async def test_a_refused_renewal_is_not_tried_without_pause(valkey: Backend):
    """An error that comes at once must not make the keeper spin until the deadline."""
    seen = []
    with SyncHoldfast(valkey.url, observers=[seen.append]) as hf:
        lease = hf.lock("a", ttl=1.0).acquire()
        server = valkey.owner.client()
        server.execute_command("ACL", "SETUSER", "default", "-pexpire")
        try:
            await asyncio.to_thread(lease.wait_lost, 5)
        finally:
            server.execute_command("ACL", "SETUSER", "default", "+pexpire")
        assert lease.lost
        failures = [event for event in seen if isinstance(event, RenewFailed)]
        assert 1 <= len(failures) <= 12


async def test_a_blocking_twin_survives_a_keyboard_interrupt(valkey: Backend):
    with SyncHoldfast(valkey.url, **QUICK) as hf:
        install(hf, Plan({0: "cancel after"}, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            hf.lock("a").acquire()
        lease = hf.lock("a").try_acquire()
        assert lease is not None
        lease.release()
        with hf.lock("b"), SyncHoldfast(valkey.url) as other, pytest.raises(NotAcquired):
            other.lock("b").acquire(wait=0)


@pytest.mark.parametrize("nth", [2, 3], ids=["before it waits", "when it gives up"])
async def test_several_locks_whose_giving_back_is_cancelled_before_it_has_begun_are_given_back(
    valkey: Backend, monkeypatch: pytest.MonkeyPatch, nth: int
):
    """A task that is cancelled before its first step never begins; what it was to release would be renewed for ever."""
    async with Holdfast(valkey.url) as hf, Holdfast(valkey.url) as other:
        # Given that the middle one of three, in the order in which they are taken, is taken
        first, middle, last = sorted("abc", key=lambda name: hf.lock(name)._spec.place.lock)
        busy = await other.lock(middle).acquire()
        driver, together = hf._open, 0
        real = driver._do

        async def cancelling(effect: Effect) -> Any:
            nonlocal together
            if isinstance(effect, Together) and effect.flows:
                together += 1
                if together == nth:
                    asyncio.current_task().cancel()
            return await real(effect)

        monkeypatch.setattr(driver, "_do", cancelling)
        # when it is cancelled at giving back
        taking = asyncio.create_task(hf.lock_all(["a", "b", "c"]).acquire(wait=0.05))
        await asyncio.wait([taking])
        assert taking.cancelled()
        # expect it to be given back
        await until(lambda: not hf._core.holds, within=5, what="nothing is held")
        for name in (first, last):
            lease = await until(lambda name=name: other.lock(name).try_acquire(), within=5, what=f"{name} is free")
            await lease.release()
        await busy.release()
