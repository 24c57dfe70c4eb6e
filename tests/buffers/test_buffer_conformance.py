"""What a buffer promises, on every kind of server, on asyncio and on threads: messages in, batches out.

Bounds and lives are in test_buffer_bounds.py; attachments, conversations and dead letters in test_buffer_extras.py;
ids, payloads and bad arguments in test_buffer_arguments.py."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest
from buffer_boxes import Box, Boxes, data_of

from holdfast import Indeterminate, LeaseLost, NotAcquired
from holdfast.events import Acked, Nacked, Taken
from support.conditions import until
from support.faults import Plan, install

# -- in -------------------------------------------------------------------------------------------------------------


async def test_messages_are_kept_in_the_order_they_came(boxes: Boxes):
    # Given two clients
    one, two = await boxes.two()
    # when they append and extend in turn
    first = await one.append("u", "a")
    many = await two.extend("u", ["b", "c"])
    last = await one.append("u", "d")
    # expect one order for everybody, with ids, lengths and times
    assert [first.length, many.length, last.length] == [1, 3, 4]
    assert (many.id, len(many.ids)) == (many.ids[-1], 2)
    assert [done.dropped for done in (first, many, last)] == [{}, {}, {}]
    assert not first.replayed
    for box in (one, two):
        seen = await box.peek("u")
        assert data_of(seen) == ["a", "b", "c", "d"]
        assert [m.id for m in seen] == [first.id, *many.ids, last.id]
    assert len({m.id for m in seen}) == 4
    assert [m.at for m in seen] == sorted(m.at for m in seen)
    assert data_of(await one.peek("u", 2)) == ["a", "b"]


async def test_users_and_buffers_are_apart(boxes: Boxes):
    box = await boxes.box()
    other = Box(box.actor, "outbox")
    await box.append("u", 1)
    await box.append("v", 2)
    await other.append("u", 3)
    assert [await box.waiting("u"), await box.waiting("v"), await other.waiting("u")] == [[1], [2], [3]]
    batch = await box.take("u")
    assert (await box.take("v")).key == "v"
    assert (await other.take("u")).buffer == "outbox"
    assert (batch.key, batch.buffer, data_of(batch.messages)) == ("u", "inbox", [1])


async def test_an_append_that_may_have_happened_does_not_say_that_it_did_not(quick: Boxes):
    # Given an append whose reply is lost, and a server that cannot be reached from then on
    box = await quick.box(settings={"retry_for": 0.3})
    for call in (box.append, lambda user, data: box.converse(user, data, "")):
        await call("somebody", 1)  # a server that does not know the script yet would answer that, and nothing is done
        plan = Plan({0: "reply dropped"} | dict.fromkeys(range(1, 500), "cut before"), KeyboardInterrupt)
        real = box.actor.hf._open.run
        install(box.actor.hf, plan)
        # when it gives up, expect it to say that it does not know
        with pytest.raises(Indeterminate):
            await call("u", 1)
        box.actor.hf._open.run = real
    assert (await box.stats("u")).waiting == 1


# -- numbers --------------------------------------------------------------------------------------------------------


async def test_stats_tell_what_waits_and_what_is_in_flight(boxes: Boxes):
    box = await boxes.box()
    stats = await box.stats("u")
    assert (stats.waiting, stats.bytes, stats.age, stats.in_flight, stats.held, stats.pairs) == (
        0,
        0,
        None,
        0,
        False,
        0,
    )
    assert (await box.count("u"), await box.age("u"), await box.peek("u")) == (0, None, [])
    await box.extend("u", [1, 2, 3])
    await box.converse("u", "hi", "hello")
    batch = await box.take("u", 2, lease=20)
    stats = await box.stats("u")
    assert (stats.waiting, stats.in_flight, stats.attempt, stats.held, stats.fence) == (1, 2, 1, True, batch.fence)
    assert 15 < stats.free_in <= 20
    assert 0 < stats.bytes < 100
    assert 0 <= stats.age < 10
    assert (await box.count("u"), 0 <= await box.age("u") < 10) == (1, True)
    await box.nack(batch)
    stats = await box.stats("u")
    assert (stats.held, stats.free_in, stats.in_flight) == (False, 0.0, 2)


async def test_totals_account_for_every_message(boxes: Boxes):
    # Given users of whom each has met another end
    box = await boxes.box(capacity=3)
    await box.extend("absorbed", [1, 2])
    await box.ack(await box.take("absorbed"))
    await box.extend("popped", [1, 2, 3])
    await box.pop("popped", 2)
    await box.extend("cleared", [1, 2])
    await box.clear("cleared")
    await box.extend("forgotten", [1])
    await box.forget("forgotten")
    await box.extend("dropped", [1, 2, 3, 4])
    await box.extend("dead", [1, 2])
    await box.nack(await box.take("dead", max_attempts=1))
    await box.extend("held", [1, 2])
    held = await box.take("held", lease=30)
    totals = await box.totals()
    # expect each number where it belongs
    counts = totals.counts
    ended = {"absorbed": 2, "popped": 2, "cleared": 2, "forgotten": 1, "dropped.capacity": 1, "dead": 2, "batches": 1}
    assert counts == ended
    assert (totals.users, totals.dead_letters, totals.idle_workers) == (3, 1, 0)
    appended = 2 + 3 + 2 + 1 + 4 + 2 + 2
    assert appended == sum(counts.values()) - counts["batches"] + 1 + 3 + len(held.messages)


async def test_events_tell_of_batches(quick: Boxes):
    events = []
    box = await quick.box(settings={"observers": [events.append]})
    await box.extend("u", [1, 2])
    await box.nack(await box.take("u"), 0.001)
    batch = await box.take_when_free("u")
    await box.ack(batch)
    first, second = [e for e in events if isinstance(e, Taken)]
    (nacked,) = [e for e in events if isinstance(e, Nacked)]
    (acked,) = [e for e in events if isinstance(e, Acked)]
    assert (first.name, first.key, first.batch, first.attempt, first.messages) == ("inbox", "u", batch.id, 1, 2)
    assert (second.batch, second.attempt, second.fence) == (batch.id, 2, batch.fence)
    assert (nacked.batch, nacked.attempt, nacked.delay) == (batch.id, 1, 0.001)
    assert (acked.batch, acked.messages) == (batch.id, 2)


# -- out ------------------------------------------------------------------------------------------------------------


async def test_pop_removes_what_it_answers(boxes: Boxes):
    one, two = await boxes.two()
    await one.extend("u", [1, 2, 3, 4])
    assert data_of(await one.pop("u")) == [1]
    assert data_of(await two.pop("u", 2)) == [2, 3]
    assert data_of(await one.pop("u", 100)) == [4]
    assert await two.pop("u") == []
    assert await one.count("u") == 0
    assert (await one.totals()).users == 0
    # what is in a batch is not popped
    await one.extend("u", [5, 6])
    batch = await one.take("u", 1)
    assert data_of(await two.pop("u", 10)) == [6]
    assert await one.ack(batch) == 0


async def test_a_batch_is_taken_once_and_removed_by_its_acknowledgement(boxes: Boxes):
    one, two = await boxes.two()
    assert await one.take("u") is None
    await one.extend("u", [1, 2, 3])
    batch = await one.take("u", 2, lease=20)
    assert (batch.attempt, data_of(batch.messages), batch.lost, batch.done) == (1, [1, 2], False, False)
    assert 15 < batch.remaining() <= 20
    # one worker at a time, although more waits
    with pytest.raises(NotAcquired, match="try again later"):
        await two.take("u")
    assert await one.ack(batch) == 0
    assert (batch.done, batch.lost, batch.remaining()) == (True, False, 0.0)
    assert await one.ack(batch) == 0
    assert await one.nack(batch) is False
    rest = await two.take("u")
    assert (data_of(rest.messages), rest.attempt, rest.id != batch.id, rest.fence > batch.fence) == ([3], 1, True, True)
    await two.ack(rest)
    assert await one.take("u") is None
    assert (await one.totals()).users == 0


async def test_among_many_each_message_is_absorbed_once_and_in_order(boxes: Boxes):
    # Given two who append for two users, and three who absorb what they find
    producers = [await boxes.box(capacity=1000), await boxes.box(capacity=1000)]
    consumers = [await boxes.box() for _ in range(3)]
    users, each, absorbed, inside = ("u", "v"), 25, {"u": [], "v": []}, {"u": 0, "v": 0}

    async def produce(number, box):
        for at in range(each):
            for user in users:
                await box.append(user, [number, at])

    async def consume(box):
        while sum(map(len, absorbed.values())) < len(producers) * len(users) * each:
            for user in users:
                try:
                    batch = await box.take(user, 7, lease=20)
                except NotAcquired:
                    batch = None
                if batch is None:
                    await asyncio.sleep(0.002)
                    continue
                inside[user] += 1
                assert inside[user] == 1, "two workers at once"
                absorbed[user] += data_of(batch.messages)
                await asyncio.sleep(0)
                inside[user] -= 1
                await box.ack(batch)

    # when all of them run
    work = [produce(number, box) for number, box in enumerate(producers)] + [consume(box) for box in consumers]
    await asyncio.wait_for(asyncio.gather(*work), 30)
    # expect each message once, and those of one producer in order
    for user in users:
        for number in range(len(producers)):
            assert [at for who, at in absorbed[user] if who == number] == list(range(each))
    assert (await producers[0].totals()).users == 0


async def test_a_part_can_be_acknowledged_and_the_rest_comes_again(boxes: Boxes):
    one, two = await boxes.two()
    await one.extend("u", [1, 2, 3, 4])
    batch = await one.take("u", lease=20)
    ids = [m.id for m in batch.messages]
    assert await one.ack(batch, [ids[1], ids[3]]) == 2
    assert await one.ack(batch, [ids[1]]) == 2
    assert await one.ack(batch, []) == 2
    assert not batch.done
    await one.append("u", 5)
    await one.nack(batch)
    again = await two.take("u")
    assert (again.id, data_of(again.messages), again.attempt) == (batch.id, [1, 3], 2)
    assert await two.ack(again, [m.id for m in again.messages]) == 0
    assert again.done
    assert await one.waiting("u") == [5]
    assert (await one.counts())["absorbed"] == 4


async def test_what_is_given_back_comes_again_as_the_same_batch(boxes: Boxes):
    one, two = await boxes.two()
    await one.extend("u", [1, 2])
    first = await one.take("u")
    await one.append("u", 3)
    assert await one.nack(first) is False
    assert first.done
    second = await two.take("u")
    assert (second.id, second.attempt, second.fence > first.fence) == (first.id, 2, True)
    assert second.messages == first.messages
    assert await two.nack(second, count=False) is False
    third = await one.take("u")
    assert (third.id, third.attempt, third.fence > second.fence) == (first.id, 2, True)
    await one.ack(third)
    assert data_of((await one.take("u")).messages) == [3]


async def test_a_delay_is_kept(boxes: Boxes):
    one, two = await boxes.two()
    await one.append("u", 1)
    started = time.monotonic()
    await one.nack(await one.take("u"), 0.5)
    with pytest.raises(NotAcquired):
        await two.take("u")
    batch = await two.take_when_free("u")
    assert 0.5 <= time.monotonic() - started < 3
    assert (batch.attempt, data_of(batch.messages)) == (2, [1])


async def test_a_dead_holders_batch_goes_to_the_next_one(boxes: Boxes):
    # Given a holder that does not renew, as a dead one
    one, two = await boxes.two()
    await one.extend("u", [1, 2])
    old = await one.take("u", lease=0.3)
    old._taking.hold.abandoned = True
    await one.append("u", 3)
    # when its lease ends, expect the same batch with a higher attempt and fence
    new = await two.take_when_free("u", lease=20)
    assert (new.id, new.attempt, new.fence > old.fence, new.messages) == (old.id, 2, True, old.messages)
    await until(lambda: old.lost)
    # and nothing that the old one does reaches it
    with pytest.raises(LeaseLost):
        await one.ack(old)
    with pytest.raises(LeaseLost):
        old.check()
    assert await one.nack(old) is False
    assert (await two.stats("u")).held
    assert await two.ack(new) == 0
    assert (await one.counts())["redelivered"] == 1
    assert await one.waiting("u") == [3]


async def test_a_batch_is_renewed_while_it_is_held(quick: Boxes):
    one, two = await quick.two()
    await one.append("u", 1)
    batch = await one.take("u", lease=0.5)
    started = time.monotonic()
    while time.monotonic() - started < 1.2:
        with pytest.raises(NotAcquired):
            await two.take("u")
        await asyncio.sleep(0.05)
    assert not batch.lost
    assert (await two.stats("u")).held
    assert await one.ack(batch) == 0


async def test_a_batch_that_nobody_can_acknowledge_is_not_renewed(quick: Boxes):
    one, two = await quick.two()
    await one.append("u", 1)
    await one.take("u", lease=0.4)  # dropped at once
    gc.collect()
    assert (await two.take_when_free("u", within=5)).attempt == 2


async def test_max_hold_ends_a_hung_holder(quick: Boxes):
    one, two = await quick.two()
    await one.append("u", 1)
    batch = await one.take("u", lease=30, max_hold=0.4)
    # the server does not wait for a lease that its holder may not keep: the holder may hang with its keeper
    assert (await two.stats("u")).free_in <= 0.4
    again = await two.take_when_free("u", within=5)
    assert (again.id, again.attempt) == (batch.id, 2)
    await until(lambda: batch.lost)


# -- the body -------------------------------------------------------------------------------------------------------


async def test_the_end_of_the_body_acknowledges_and_an_error_gives_back(boxes: Boxes):
    box = await boxes.box()
    await box.extend("u", [1, 2])
    first = await box.take("u")
    await box.actor.enter(first)
    await box.actor.leave(first, KeyError("mine"))
    assert first.done
    second = await box.take("u", max_attempts=2)
    assert (second.id, second.attempt) == (first.id, 2)
    await box.actor.enter(second)
    await box.actor.leave(second, KeyError("mine"))
    (letter,) = await box.dead_letters()
    assert letter.error == "KeyError('mine')"
    await box.append("u", 3)
    third = await box.take("u")
    await box.actor.enter(third)
    await box.actor.leave(third)
    assert third.done
    assert (await box.counts())["absorbed"] == 1


async def test_the_loss_of_a_batch_reaches_the_body(boxes: Boxes):
    """On asyncio the body is cancelled; on threads it sees `lost`. Both get LeaseLost where it ends."""
    one, two = await boxes.two()
    await one.append("u", 1)
    seen = {}

    async def work(batch):
        async with batch:
            seen["batch"] = batch
            try:
                await asyncio.sleep(30)
            finally:
                seen["ended"] = time.monotonic()

    def work_blocking(batch):
        with batch:
            seen["batch"] = batch
            while not batch.lost:
                time.sleep(0.005)
            seen["ended"] = time.monotonic()

    batch = await one.take("u", lease=0.5)
    told = threading.Event()
    batch.on_lost(told.set)
    running = one.actor.start(lambda _: (work if boxes.api == "async" else work_blocking)(batch))
    await until(lambda: "batch" in seen)
    fence = await two.forget("u")
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(running, 10)
    assert fence > batch.fence
    assert told.is_set()
    assert (batch.lost, batch.done, batch.remaining()) == (True, False, 0.0)


async def test_closing_hands_batches_back_at_once(boxes: Boxes):
    one, two = await boxes.two()
    await one.extend("u", [1, 2])
    batch = await one.take("u", lease=600)
    await boxes.close_client(one.actor.hf)
    again = await two.take("u")
    # it was not the batch's fault, so the attempt does not count
    assert (again.id, again.attempt, again.fence > batch.fence) == (batch.id, 1, True)
    assert batch.remaining() == 0.0


# -- removing -------------------------------------------------------------------------------------------------------


async def test_clear_removes_what_waits_and_leaves_the_batch(boxes: Boxes):
    box = await boxes.box()
    assert await box.clear("u") == 0
    await box.converse("u", "a", "b")
    await box.extend("u", [1, 2, 3])
    batch = await box.take("u", 1)
    await box.converse("u", "c", "d")
    assert await box.clear("u") == 2
    stats = await box.stats("u")
    assert (stats.waiting, stats.in_flight, stats.pairs) == (0, 1, 1)
    await box.nack(batch)
    again = await box.take("u")
    assert (data_of(again.messages), [p.user for p in again.pairs]) == ([1], ["a"])
    await box.ack(again)
    assert (await box.counts())["cleared"] == 2


async def test_forget_leaves_no_trace(boxes: Boxes):
    # Given a user with everything there is
    box = await boxes.box()
    await box.append("u", "dead")
    await box.nack(await box.take("u", max_attempts=1))
    await box.append("v", "dead too")
    await box.nack(await box.take("v", max_attempts=1))
    await box.append("u", "popped")
    await box.pop("u")
    await box.converse("u", "a", "b")
    await box.extend("u", ["held", "waits"])
    await box.append("u", "file", pending=["f"])
    batch = await box.take("u", 1)
    # when the user is forgotten
    fence = await box.forget("u")
    # expect nothing but numbers, a fence above all others, and other users as they were
    assert fence > batch.fence
    left = [key for key in boxes.lives() if key in box.keys("u").values() and key != box.keys("u")["due"]]
    assert not left
    assert (await box.counts())["forgotten"] == 4
    assert [letter.key for letter in await box.dead_letters()] == ["v"]
    with pytest.raises(LeaseLost):
        await box.ack(batch)
    await box.append("u", "new")
    assert (await box.take("u")).fence > fence


async def test_flush_makes_a_user_due(boxes: Boxes):
    box = await boxes.box()
    assert await box.flush("u") is False
    await box.append("u", 1)
    assert (await box.totals()).due == 0
    assert await box.flush("u") is True
    assert (await box.totals()).due == 1
    await box.ack(await box.take("u"))
    await box.append("u", 2)
    assert (await box.totals()).due == 0
