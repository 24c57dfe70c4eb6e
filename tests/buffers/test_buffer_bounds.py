"""What bounds a buffer, and what does not: number, bytes and age of messages, and the life of what is kept.

On every kind of server where the kind may matter, on asyncio and on threads."""

from __future__ import annotations

import time

import pytest
from buffer_boxes import Box, Boxes, data_of

from holdfast.events import Dropped, Expiring, NearlyFull
from support.conditions import until

GRACE = 60_000


# -- number and bytes -----------------------------------------------------------------------------------------------


async def test_the_oldest_make_room_and_it_is_said_and_counted(boxes: Boxes):
    events = []
    box = await boxes.box(capacity=5, settings={"observers": [events.append]})
    for number in range(4):
        assert not (await box.append("u", number)).dropped
    assert [(e.name, e.key, e.length, e.capacity) for e in events if isinstance(e, NearlyFull)] == [
        ("inbox", "u", 4, 5)
    ]
    done = await box.extend("u", [4, 5, 6])
    assert (done.length, done.dropped) == (5, {"capacity": 2})
    assert await box.waiting("u") == [2, 3, 4, 5, 6]
    # more at once than there is room for: the newest stay
    done = await box.extend("u", list(range(10, 20)))
    assert (done.length, done.dropped) == (5, {"capacity": 10})
    assert await box.waiting("u") == [15, 16, 17, 18, 19]
    assert (await box.counts())["dropped.capacity"] == 12
    assert [(e.what, e.reason, e.count) for e in events if isinstance(e, Dropped)] == [
        ("message", "capacity", 2),
        ("message", "capacity", 10),
    ]


async def test_bytes_are_bounded_and_the_newest_always_fits(boxes: Boxes):
    box = await boxes.box(max_bytes=400)
    for _ in range(3):
        await box.append("u", b"x" * 100)
    assert (await box.stats("u")).bytes <= 400
    done = await box.append("u", b"y" * 300)
    assert done.dropped == {"bytes": 3}
    assert await box.waiting("u") == [b"y" * 300]
    assert (await box.stats("u")).bytes <= 400
    assert (await box.counts())["dropped.bytes"] == 3


async def test_what_is_dropped_is_never_of_a_batch_in_flight(boxes: Boxes):
    # Given a batch in flight
    box = await boxes.box(capacity=3, max_bytes=1000)
    await box.extend("u", [1, 2, 3])
    batch = await box.take("u", lease=30)
    # when more comes than there is room for, in number and in bytes
    assert (await box.extend("u", [4, 5, 6])).dropped == {}
    assert (await box.append("u", 7)).dropped == {"capacity": 1}
    assert (await box.append("u", b"z" * 962)).dropped == {"capacity": 1, "bytes": 2}
    # expect the batch as it was, for its holder and for the next one
    assert (await box.stats("u")).in_flight == 3
    await box.nack(batch)
    again = await box.take("u")
    assert (again.id, data_of(again.messages)) == (batch.id, [1, 2, 3])
    assert await box.ack(again) == 0
    assert await box.waiting("u") == [b"z" * 962]


async def test_much_can_be_dropped_at_once_beside_a_large_batch(quick: Boxes):
    """The server stands still while a script runs."""
    large = await quick.box(capacity=100_000, max_bytes=1 << 30)
    small = Box(large.actor, capacity=100_000, max_bytes=2000)
    for _ in range(4):
        await large.extend("u", [b"x" * 20] * 1000)
    batch = await large.take("u", 1000)
    started = time.monotonic()
    done = await small.append("u", "new")
    assert time.monotonic() - started < 1
    assert done.dropped == {"bytes": 3001 - done.length}
    assert await large.ack(batch) == 0


# -- ages and lives -------------------------------------------------------------------------------------------------


async def test_each_message_has_its_own_age(quick: Boxes):
    """PITFALL 24: an active user's old messages do not live for ever."""
    events = []
    box = await quick.box(ttl=1.0, settings={"observers": [events.append]})
    await box.append("u", "old")
    await until(lambda: older(box, 0.55), what="half the life of the first")
    await box.append("u", "new")
    assert [e.key for e in events if isinstance(e, Expiring)] == ["u"]
    await until(lambda: gone(box, "old"), what="the end of the first")
    assert await box.waiting("u") == ["new"]
    assert (await box.stats("u")).waiting == 1
    done = await box.append("u", "newest")
    assert (done.length, done.dropped) == (2, {"age": 1})
    assert (await box.counts())["dropped.age"] == 1
    await until(lambda: gone(box, "newest"), what="the end of all")
    assert await box.take("u") is None
    assert (await box.counts())["dropped.age"] == 3
    assert await box.age("u") is None


@pytest.mark.parametrize("how", ["flush", "clear", "pop", "take"])
async def test_what_is_too_old_is_counted_as_that_and_leaves_the_batch_alone(quick: Boxes, how: str):
    events = []
    box = await quick.box(ttl=0.5, settings={"observers": [events.append]})
    await box.extend("u", [1, 2])
    batch = await box.take("u", 1, lease=20)
    await until(lambda: gone(box, 2), what="the end of the second")
    if how == "take":
        await box.nack(batch)
        batch = await box.take("u")
    else:
        assert not await getattr(box, how)("u")
    assert (await box.stats("u")).in_flight == 1
    assert await box.ack(batch) == 0
    assert (await box.counts())["dropped.age"] == 1
    if how in ("pop", "take"):
        assert [(e.reason, e.count) for e in events if isinstance(e, Dropped)] == [("age", 1)]


async def older(box: Box, seconds: float) -> bool:
    return await box.age("u") > seconds


async def gone(box: Box, what: object) -> bool:
    return what not in await box.waiting("u")


async def test_what_nobody_touches_ends_with_its_life_and_not_before(boxes: Boxes):
    box = await boxes.box(ttl=100, conversation_ttl=50)
    await box.append("u", 1, pending=["file"])
    await box.converse("u", "hi", "hello")
    lives, keys = boxes.lives(), box.keys("u")
    assert 99_000 < lives[keys["u"]] <= 100_000 + GRACE
    assert 99_000 < lives[keys["a"]] <= 100_000 + GRACE
    assert 149_000 < lives[keys["c"]] <= 150_000 + GRACE
    assert -1 not in lives.values()


@pytest.mark.parametrize("after", ["taken", "nacked", "renewed"])
async def test_a_batch_that_nobody_has_lives_as_long_as_its_messages(quick: Boxes, after: str):
    """Its worker died or gave it back, and there is no other one for a while: that is no reason to lose it."""
    # Given a message with its attachment and its conversation, all taken
    box = await quick.box(ttl=1000, conversation_ttl=1000)
    message = await box.append("u", 1, pending=["file"])
    await box.resolve("u", message.id, "file", b"x")
    await box.converse("u", "hi", "hello")
    batch = await box.take("u", lease=0.6 if after == "renewed" else 5)
    # when it is held, given back or renewed
    if after == "nacked":
        await box.nack(batch)
    if after == "renewed":
        before = batch.deadline
        await until(lambda: batch.deadline > before, what="a renewal")
    # expect all of it to live for the life of a message at least
    lives = quick.lives()
    short = {kind: lives[box.keys("u")[kind]] for kind in "uac" if lives[box.keys("u")[kind]] < 990_000}
    assert not short, f"the batch would be gone in {short} ms"
    assert -1 not in lives.values()


async def test_an_append_does_not_shorten_the_life_of_a_batch_in_flight(quick: Boxes):
    box = await quick.box(ttl=10)
    await box.extend("u", [1, 2])
    batch = await box.take("u", 1, lease=3600)
    await box.append("u", 3)
    assert quick.lives()[box.keys("u")["u"]] > 3_590_000
    await box.ack(batch)


async def test_a_batch_given_back_for_long_keeps_its_attachments_and_pairs(quick: Boxes):
    box = await quick.box(ttl=10, conversation_ttl=10)
    message = await box.append("u", 1, pending=["file"])
    await box.resolve("u", message.id, "file", b"x")
    await box.converse("u", "hi", "hello")
    await box.nack(await box.take("u", lease=5), 3600)
    lives = quick.lives()
    short = {kind: lives[box.keys("u")[kind]] for kind in "uac" if lives[box.keys("u")[kind]] < 3_590_000}
    assert not short, f"parts of the batch would be gone in {short} ms"
