"""Every operation on a buffer: a subject whose steps may meet faults, and a bystander who sees to the rest."""

from __future__ import annotations

import contextlib
from typing import Any

import redis

import holdfast.buffers.batch
import holdfast.sync.batch
from holdfast import HoldfastError, NotAcquired, Unavailable
from holdfast.buffers import holding
from holdfast.buffers.holding import Terms
from support.conditions import until
from support.faults import Plan, install

LEASE = 5.0
RECORD, UNTIL = 53 + 38, slice(77, 83)
"""Of the record of a batch that somebody has: the size without his token, and where the end of his lease is
(`lua/_record.lua`)."""
USER = "user-7"


class World:
    """One subject whose operation meets the faults, one bystander who sets up and looks at the result."""

    def __init__(self, subject, bystander, plan: Plan):
        self.subject, self.bystander, self.plan = subject, bystander, plan
        self.sure: list[str] = []
        """Messages whose append returned, in order."""
        self.maybe: list[str] = []
        """Messages whose append raised, or was never told to us."""
        self.may_go: set[str] = set()
        """Messages that the operation may have removed."""
        self.must_go: set[str] = set()
        """Messages that it said it removed."""
        self.batch: Any = None
        self.probe = "z"
        """A message of the bystander after all that; none where it would push another out."""
        self.pairs: tuple[int, int] = (0, 0)
        """How many conversation turns there are, at least and at most."""

    @staticmethod
    def buffer(hf):
        return hf.buffer("b", capacity=4, ttl=600, conversations=3)

    def by(self, function, *args, **kwargs):
        """The bystander does this."""
        return self.bystander.do(lambda hf: getattr(self.buffer(hf), function)(USER, *args, **kwargs))

    def all(self, function, *args):
        return self.bystander.do(lambda hf: getattr(self.buffer(hf), function)(*args))

    def arm(self) -> None:
        """From here on the subject's steps meet the faults."""
        install(self.subject.hf, self.plan)

    def does(self, function, *args, **kwargs):
        """The subject does this."""
        return self.subject.do(lambda hf: getattr(self.buffer(hf), function)(USER, *args, **kwargs))

    async def given(self, count: int) -> list[str]:
        """Messages of the bystander."""
        for _ in range(count):
            name = f"m{len(self.sure)}"
            await self.by("append", name)
            self.sure.append(name)
        return self.sure

    async def taken(self, **options) -> Any:
        """A batch of the subject, before the faults begin."""
        self.batch = await self.does("take", **{"lease": LEASE, **options})
        self.may_go = {message.data for message in self.batch.messages}
        return self.batch


def run_out(server: redis.Redis) -> None:
    """The lease of whoever has the batch is over, as if its time had passed: so it can be long, and nobody waits."""
    seconds, micro = server.time()
    now = int(seconds) * 1000 + int(micro) // 1000
    for key in server.scan_iter(match=f"*:u:{USER}", count=1000):
        record = bytearray(server.lindex(key, 0))
        if len(record) > RECORD:
            left = int.from_bytes(record[UNTIL], "big") - now
            assert left <= LEASE * 1000, f"the batch is held for {left} ms"
            record[UNTIL] = (now - 1).to_bytes(6, "big")
            server.lset(key, 0, bytes(record))


# -- the operations: each arms the faults, acts, and says what must be so if it returned ---------------------


async def append(w: World):
    await w.given(1)
    w.arm()
    w.maybe = ["n0"]
    done = await w.does("append", "n0")
    w.sure, w.maybe = [*w.sure, "n0"], []
    assert done.length == 2
    assert not done.dropped


async def first_append(w: World):
    w.arm()
    w.maybe = ["n0"]
    done = await w.does("append", "n0")
    w.sure, w.maybe = ["n0"], []
    assert done.length == 1


async def append_over_the_capacity(w: World):
    await w.given(4)
    w.probe = ""
    w.arm()
    w.maybe, w.may_go = ["n0"], {"m0"}
    done = await w.does("append", "n0")
    w.sure, w.maybe, w.must_go = [*w.sure, "n0"], [], {"m0"}
    assert done.dropped == {"capacity": 1} or (done.replayed and not done.dropped)


async def extend(w: World):
    await w.given(1)
    w.arm()
    w.maybe = ["n0", "n1"]
    done = await w.does("extend", w.maybe)
    w.sure, w.maybe = [*w.sure, *w.maybe], []
    assert done.length == 3
    assert len(set(done.ids)) == 2


async def append_with_pending(w: World):
    await w.given(1)
    w.arm()
    w.maybe = ["n0"]
    done = await w.does("append", "n0", pending={"picture": 0.3})
    w.sure, w.maybe = [*w.sure, "n0"], []
    assert (await w.by("resolve", done.id, "picture", b"png")) in (True, False)


async def resolve(w: World):
    done = await w.by("append", "m0", pending={"picture": 0.8})
    w.sure = ["m0"]
    w.arm()
    assert await w.does("resolve", done.id, "picture", b"png") is True
    batch = await w.by("take", lease=5)
    assert [m.attachments for m in batch.messages] == [{"picture": b"png"}]
    await w.bystander.do(lambda _: batch.nack())


async def fail(w: World):
    done = await w.by("append", "m0", pending={"picture": 0.8})
    w.sure = ["m0"]
    w.arm()
    assert await w.does("fail", done.id, "picture") is True
    batch = await w.by("take", lease=5)
    assert [m.attachments for m in batch.messages] == [{}]
    await w.bystander.do(lambda _: batch.nack())


async def converse(w: World):
    await w.given(1)
    await w.by("converse", "said", "answered")
    w.pairs = (1, 2)
    w.arm()
    assert await w.does("converse", "new", "turn") == 2
    w.pairs = (2, 2)


async def take(w: World):
    await w.given(2)
    w.arm()
    w.batch = await w.does("take", lease=LEASE)
    assert [m.data for m in w.batch.messages] == w.sure
    assert w.batch.attempt == 1
    assert (await w.by("stats")).held


async def take_nothing(w: World):
    w.arm()
    assert await w.does("take", lease=LEASE) is None


async def take_what_is_busy(w: World):
    await w.given(1)
    batch = await w.by("take", lease=5)
    w.arm()
    try:
        with contextlib.suppress(NotAcquired):
            await w.does("take", lease=LEASE)
            raise AssertionError("two have the same batch")
    finally:
        assert not batch.lost
        await w.bystander.do(lambda _: batch.nack())


async def take_an_expired_batch(w: World):
    await w.given(2)
    lost = await w.by("take", lease=0.1, max_hold=0.05)

    async def free():
        return not (await w.by("stats")).held

    await until(free)
    w.arm()
    w.batch = await w.does("take", lease=LEASE)
    assert (w.batch.id, w.batch.attempt) == (lost.id, 2)
    assert w.batch.fence > lost.fence
    assert [m.data for m in w.batch.messages] == w.sure


async def ack(w: World):
    await w.given(2)
    await w.taken()
    await w.given(1)
    w.arm()
    assert await w.subject.do(lambda _: w.batch.ack()) == 0
    w.must_go = {"m0", "m1"}


async def ack_with_pairs(w: World):
    await w.given(1)
    await w.by("converse", "said", "answered")
    await w.taken()
    await w.given(1)
    await w.by("converse", "new", "turn")
    w.pairs = (1, 2)
    w.arm()
    assert await w.subject.do(lambda _: w.batch.ack()) == 0
    w.must_go, w.pairs = {"m0"}, (1, 1)


async def partial_ack(w: World):
    await w.given(3)
    await w.taken()
    w.may_go = {"m1"}
    w.arm()
    assert await w.subject.do(lambda _: w.batch.ack([w.batch.messages[1].id])) == 2
    w.must_go = {"m1"}


async def nack(w: World):
    await w.given(2)
    await w.taken()
    w.may_go = set()
    w.arm()
    assert await w.subject.do(lambda _: w.batch.nack()) is False


async def nack_with_delay(w: World):
    await w.given(1)
    await w.taken()
    w.may_go = set()
    w.arm()
    assert await w.subject.do(lambda _: w.batch.nack(delay=0.2, count=False)) is False


async def last_nack(w: World):
    """It goes to the dead letters."""
    await w.given(1)
    await w.taken(max_attempts=1)
    await w.given(1)
    w.may_go = set()
    w.arm()
    # What it answers after a lost reply: test_buffer_repeats.
    await w.subject.do(lambda _: w.batch.nack(error="test"))


async def pop(w: World):
    await w.given(3)
    w.arm()
    w.may_go = {"m0", "m1"}
    try:
        out = await w.does("pop", 2)
    except Unavailable:
        w.may_go = set()
        raise
    assert [m.data for m in out] == ["m0", "m1"]
    w.must_go = w.may_go


async def clear(w: World):
    await w.given(2)
    w.may_go = set(w.sure)
    w.arm()
    await w.does("clear")
    w.must_go = w.may_go


async def clear_beside_a_batch(w: World):
    await w.given(1)
    batch = await w.by("take", lease=5)
    await w.given(2)
    w.may_go = {"m1", "m2"}
    w.arm()
    try:
        await w.does("clear")
        w.must_go = w.may_go
    finally:
        await w.bystander.do(lambda _: batch.nack())


async def forget(w: World):
    await w.given(1)
    lost = await w.by("take", lease=5)
    await w.given(2)
    w.may_go = set(w.sure)
    w.arm()
    try:
        assert await w.does("forget") > lost.fence
        w.must_go = w.may_go
    finally:
        with contextlib.suppress(HoldfastError):
            await w.bystander.do(lambda _: lost.nack())


async def flush(w: World):
    await w.given(2)
    w.arm()
    assert await w.does("flush") is True
    assert (await w.all("totals")).due == 1


async def buried(w: World) -> Any:
    await w.given(1)
    batch = await w.by("take", lease=5, max_attempts=1)
    assert await w.bystander.do(lambda _: batch.nack(error="test")) is True
    (letter,) = await w.all("dead_letters")
    return letter


async def replay(w: World):
    letter = await buried(w)
    w.arm()
    await w.subject.do(lambda hf: w.buffer(hf).replay(letter.id))
    batch = await w.by("take", lease=5)
    assert f".{batch.id}" in letter.id
    assert batch.attempt == 1
    await w.bystander.do(lambda _: batch.nack())


async def purge(w: World):
    letter = await buried(w)
    w.may_go = {"m0"}
    w.arm()
    await w.subject.do(lambda hf: w.buffer(hf).purge(letter.id))
    w.must_go = w.may_go


async def claim(w: World):
    """What a worker does to find its next batch."""
    await w.given(2)
    await w.by("flush")
    w.arm()
    terms = Terms(LEASE, 100, 5)

    def flow(hf):
        spec, driver = w.buffer(hf)._spec, hf._open
        shard = spec.place(USER).shard
        return driver.run(holding.claim(hf._core, spec, shard, terms, "worker.1", driver.home()))

    taking, *_ = await w.subject.do(flow)
    if taking is None:  # it was not executed: it was never sent, or its script was not loaded
        assert w.plan.hits
        assert (await w.by("stats")).in_flight == 0
        return
    hf = w.subject.hf
    kind = holdfast.buffers.batch.Batch if hasattr(hf, "__aenter__") else holdfast.sync.batch.Batch
    w.batch = kind(hf._core, hf._open, w.buffer(hf)._spec, taking, terms)
    assert [m.data for m in w.batch.messages] == w.sure


OPERATIONS = {
    f.__name__: f
    for f in (
        append, first_append, append_over_the_capacity, extend, append_with_pending, resolve, fail, converse, take,
        take_nothing, take_what_is_busy, take_an_expired_batch, ack, ack_with_pairs, partial_ack, nack,
        nack_with_delay, last_nack, pop, clear, clear_beside_a_batch, forget, flush, replay, purge, claim,
    )
}  # fmt: skip
