"""At every step of every operation on a buffer: reply dropped, connection cut, silence, caller cancelled.

Then: what was acknowledged is there exactly once and in order, what raised is there at most once, nothing is held by
nobody for longer than its lease, somebody else can take and acknowledge all of it, and the counters agree.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import redis
from buffer_operations import OPERATIONS, World, run_out

from holdfast import HoldfastError, Indeterminate, NotAcquired, Unavailable
from holdfast.engine.scripts import Scripts
from support.actors import Fleet
from support.backends import Backend
from support.conditions import until
from support.faults import FAULTS, Plan, every_pair, every_step

QUICK = {"call_timeout": 0.3, "retry_for": 2.0}
ENDED = ("absorbed", "popped", "cleared", "forgotten", "purged", "dropped.age", "dropped.capacity", "dropped.bytes",
         "dropped.dead")  # fmt: skip


async def account(w: World) -> int:
    """Messages by the counters: ended, waiting, in flight, dead."""
    counts = (await w.all("totals")).counts
    stats = await w.by("stats")
    dead = sum(letter.count for letter in await w.all("dead_letters"))
    return sum(counts.get(name, 0) for name in ENDED) + stats.waiting + stats.in_flight + dead


async def drain(w: World, server: redis.Redis) -> tuple[list[str], int]:
    """Somebody else takes and acknowledges all there is. Answers the messages in order, and the pairs."""
    found: list[str] = []
    pairs = 0
    fence = 0

    async def taken():
        try:
            return [await w.by("take", lease=5)]
        except NotAcquired:
            return None

    run_out(server)
    while True:
        (batch,) = await until(taken, within=2, what="a batch that nobody holds")
        stats = await w.by("stats")
        if batch is None:
            if stats.waiting == 0:
                return found, pairs + stats.pairs
            await asyncio.sleep(0.02)  # an attachment is pending: its deadline passes
            continue
        assert batch.fence > fence
        fence = batch.fence
        found += [message.data for message in batch.messages]
        pairs += len(batch.pairs)
        assert await w.bystander.do(lambda _, batch=batch: batch.ack()) == 0


async def let_go(w: World) -> None:
    """What the subject still holds is its own, and it can act on it after the fault."""
    batch = w.batch
    if batch is None or batch.done or batch.lost:
        return
    assert (await w.by("stats")).held
    with contextlib.suppress(HoldfastError):
        await w.subject.do(lambda _: batch.nack(count=False))


async def check(w: World, server: redis.Redis, returned: bool) -> None:
    await let_go(w)
    if w.probe:
        await w.by("append", w.probe)
    stored = await account(w)
    asked = len(w.sure) + bool(w.probe)
    assert asked <= stored <= asked + len(w.maybe), "the counters do not agree with what was appended"
    found, pairs = await drain(w, server)
    dead = []
    for letter in await w.all("dead_letters"):
        whole = await w.all("dead_letter", letter.id)
        dead += [message.data for message in whole.messages]
    everything = found + dead
    assert len(everything) == len(set(everything)), f"twice: {everything}"
    after = [w.probe] if w.probe else []
    assert {*w.sure, *after} <= set(everything) | w.may_go, f"lost: only {everything} of {w.sure}"
    assert set(everything) <= {*w.sure, *w.maybe, *after}
    assert not w.must_go & set(everything), f"there again: {everything}"
    if not returned and w.may_go and w.maybe == []:
        # In one step or not at all.
        assert w.may_go <= set(everything) or not w.may_go & set(everything), f"half of it: {everything}"
    order = [*w.sure, *w.maybe, *after]
    assert found == sorted(found, key=order.index), f"out of order: {found}"
    assert w.pairs[0] <= pairs <= w.pairs[1], f"{pairs} pairs, not {w.pairs}"
    assert await account(w) == stored
    stats = await w.by("stats")
    assert (stats.waiting, stats.in_flight, stats.bytes) == (0, 0, 0)


def nothing_for_ever(backend: Backend) -> None:
    eternal = [key for key, life in backend.keys().items() if life == -1]
    assert not eternal, f"keys without a TTL: {eternal}"


async def run_with(
    fleet: Fleet, backend: Backend, bystander, plan: Plan, operation: str, scripts: Scripts | None = None
) -> int:
    """One run of one operation with one plan. Answers how many of its faults were met."""
    backend.flush()
    client = await fleet.client(**QUICK)
    if scripts is not None:
        client._core.scripts = bystander.hf._core.scripts = scripts
    subject = await fleet.actor(client)
    world = World(subject, bystander, plan)
    returned = False
    try:
        with contextlib.suppress(Indeterminate, Unavailable, asyncio.CancelledError, KeyboardInterrupt):
            await OPERATIONS[operation](world)
            returned = True
        plan.faults = {}
        nothing_for_ever(backend)
        await check(world, backend.primaries()[0], returned)
        nothing_for_ever(backend)
    except AssertionError as error:
        raise AssertionError(f"{operation} with {plan.hits}, which {'returned' if returned else 'raised'}") from error
    world.batch = None
    await subject.stop()
    fleet._actors.remove(subject)
    await fleet.close_client(client)
    return len(plan.hits)


@pytest.fixture
async def quick_fleet(valkey: Backend, api: str):
    made = Fleet(valkey.url, api)
    yield made
    await made.close()


def cancellation(api: str) -> type[BaseException]:
    return asyncio.CancelledError if api == "async" else KeyboardInterrupt


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_single_fault(quick_fleet: Fleet, valkey: Backend, api: str, operation: str, fault: str):
    bystander = await quick_fleet.actor()
    steps = 0
    for faults in every_step(fault):
        if not await run_with(quick_fleet, valkey, bystander, Plan(faults, cancellation(api)), operation):
            break
        steps += 1
    assert steps >= 1


@pytest.mark.parametrize("pair", [("reply dropped", "reply dropped"), ("reply dropped", "cancel after"),
                                  ("reply dropped", "silent"), ("silent", "reply dropped"),
                                  ("cut before", "cancel before"), ("silent", "silent")], ids=str)  # fmt: skip
@pytest.mark.parametrize("operation", ["append", "append_over_the_capacity", "extend", "ack", "partial_ack", "claim"])
async def test_every_pair_of_faults(quick_fleet: Fleet, valkey: Backend, api: str, operation: str, pair):
    bystander = await quick_fleet.actor()

    async def run(faults: dict[int, str]) -> int:
        return await run_with(quick_fleet, valkey, bystander, Plan(faults, cancellation(api)), operation)

    assert await every_pair(run, *pair, longest=5) >= 1


class WithBug(Scripts):
    """The scripts with one place changed."""

    def __init__(self, name: str, right: str, wrong: str) -> None:
        super().__init__()
        self.name, self.right, self.wrong = name, right, wrong

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        if text is not None and f"{room}/{name}" == self.name:
            assert self.right in text, f"{self.name} has changed: put the bug back where it now would be"
            text = text.replace(self.right, self.wrong)
        return text


BUGS = {
    "a repeat is not looked up": ("append", "reply dropped", "buffers/reappend", "repeated = true", "repeated = false"),
    "pop is sent again": ("pop", "reply dropped", "buffers/pop", "retry: never", "retry: safe"),
    "append is sent again": ("extend", "reply dropped", "buffers/append", "retry: never", "retry: safe"),
    "acknowledged batches are forgotten": ("ack", "reply dropped", "buffers/ack", "remember(removed, mine)", ""),
    "the rest of a batch is lost": ("partial_ack", "silent", "buffers/ack", "call('LPUSH', key, unpack(left))", ""),
    "clear counts nothing": ("clear", "silent", "buffers/clear", "count('cleared', removed)", ""),
    "records live for ever": ("first_append", "silent", "buffers/_drop", "call('PEXPIRE', key, ms)", ""),
    "a lost claim is not found": ("claim", "reply dropped", "buffers/find", "token == ARGV[2]", "token == ''"),
}


@pytest.mark.parametrize("bug", BUGS)
async def test_each_safeguard_is_needed(valkey: Backend, bug: str):
    """The same check, with a bug put back, fails."""
    operation, fault, *place = BUGS[bug]
    fleet = Fleet(valkey.url, "async")
    bystander = await fleet.actor()
    scripts = WithBug(*place)

    async def checked() -> None:
        for step in (0, 0, 1):  # the first time the server may not know the changed script yet
            plan = Plan({step: fault}, asyncio.CancelledError)
            await run_with(fleet, valkey, bystander, plan, operation, scripts)

    with pytest.raises((AssertionError, HoldfastError)):
        await checked()
    await fleet.close()
    valkey.flush()
