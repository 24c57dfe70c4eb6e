"""Attachments, conversations and dead letters of a buffer, on every kind of server, on asyncio and on threads."""

from __future__ import annotations

import time

import pytest
from buffer_boxes import Boxes, data_of

from holdfast import ConfigurationError, NotAcquired
from holdfast.events import Buried, Dropped
from support.conditions import until


def said(batch) -> list:
    return [pair.user for pair in batch.pairs]


# -- attachments ----------------------------------------------------------------------------------------------------


async def test_only_what_is_ready_is_handed_out_and_in_order(boxes: Boxes):
    # Given a message that waits for two files, between two that do not
    box = await boxes.box()
    await box.append("u", 1)
    message = await box.append("u", 2, pending=["one", "two"])
    await box.append("u", 3)
    # when nothing of it is there, expect only what came before
    first = await box.take("u")
    assert data_of(first.messages) == [1]
    await box.ack(first)
    assert await box.take("u") is None
    assert await box.pop("u", 10) == []
    # when one of two is there, expect it to wait
    assert await box.resolve("u", message.id, "one", {"bytes": b"\x00\xff"}) is True
    assert await box.take("u") is None
    # when both are, expect all in order, each with its own attachments
    assert await box.resolve("u", message.id, "two", "text") is True
    second = await box.take("u")
    assert data_of(second.messages) == [2, 3]
    assert [dict(m.attachments) for m in second.messages] == [{"one": {"bytes": b"\x00\xff"}, "two": "text"}, {}]
    # and the same when it comes again
    await box.nack(second)
    again = await box.take("u")
    assert [dict(m.attachments) for m in again.messages] == [dict(m.attachments) for m in second.messages]
    await box.ack(again)
    assert box.keys("u")["a"] not in boxes.lives()


async def test_a_failed_attachment_is_left_out_and_blocks_nobody(boxes: Boxes):
    one, two = await boxes.two()
    message = await one.append("u", 1, pending={"good": None, "bad": 30})
    assert await two.fail("u", message.id, "bad") is True
    assert await one.resolve("u", message.id, "bad", "too late") is False
    assert await one.take("u") is None
    assert await two.resolve("u", message.id, "good", "here") is True
    assert await one.fail("u", message.id, "good") is False
    (popped,) = await one.pop("u")
    assert dict(popped.attachments) == {"good": "here"}


async def test_a_deadline_ends_the_wait(boxes: Boxes):
    """PITFALL 22: whoever was uploading died."""
    box = await boxes.box()
    message = await box.append("u", 1, pending={"slow": 0.6, "quick": 30})
    await box.append("u", 2)
    await box.resolve("u", message.id, "quick", "here")
    started = time.monotonic()
    assert await box.take("u") is None
    batch = await until(lambda: box.take("u"), what="the deadline")
    assert time.monotonic() - started < 3
    assert (data_of(batch.messages), dict(batch.messages[0].attachments)) == ([1, 2], {"quick": "here"})
    assert await box.resolve("u", message.id, "slow", "too late") is False
    assert await box.fail("u", message.id, "slow") is False


async def test_a_batch_does_not_change_when_an_attachment_comes_late(quick: Boxes):
    box = await quick.box()
    message = await box.append("u", 1, pending={"f": 0.05})
    batch = await until(lambda: box.take("u"), what="the deadline")
    assert await box.resolve("u", message.id, "f", "late") is False
    await box.nack(batch)
    again = await box.take("u")
    assert dict(again.messages[0].attachments) == {}
    # whoever uploads cannot know how far the worker is: late is late, before the acknowledgement and after
    await box.ack(again)
    assert await box.resolve("u", message.id, "f", "late") is False


async def test_settling_what_is_not_there_answers_false(quick: Boxes):
    box = await quick.box()
    message = await box.append("u", 1, pending=["f"])
    for user, number, name in (("u", message.id, "g"), ("v", message.id, "f"), ("u", "00" * 10, "f")):
        assert await box.resolve(user, number, name, 1) is False
        assert await box.fail(user, number, name) is False
    for wrong in ("", "zz", message.id + "00", 7, None):
        with pytest.raises(ConfigurationError, match="pass the id of a message"):
            await box.fail("u", wrong, "f")
    assert await box.take("u") is None


async def test_what_is_dropped_takes_its_attachments_along(boxes: Boxes):
    box = await boxes.box(capacity=2)
    for number in range(3):
        await box.append("u", number, pending=["f"])
    assert data_of(await box.peek("u")) == [1, 2]
    first, second = [m.id for m in await box.peek("u")]
    await box.resolve("u", first, "f", 1)
    await box.resolve("u", second, "f", 2)
    batch = await box.take("u")
    assert [m.attachments["f"] for m in batch.messages] == [1, 2]
    await box.ack(batch, [first])
    await box.ack(batch, [second])
    assert box.keys("u")["a"] not in boxes.lives()


# -- conversations --------------------------------------------------------------------------------------------------


async def test_pairs_come_with_the_messages_and_go_with_their_acknowledgement(boxes: Boxes):
    # Given a batch with a pair, and another pair that came meanwhile
    box = await boxes.box()
    assert await box.converse("u", "hi", {"text": "hello"}) == 1
    await box.extend("u", [1, 2])
    batch = await box.take("u")
    assert [(p.user, p.assistant, p.at > 0) for p in batch.pairs] == [("hi", {"text": "hello"}, True)]
    assert await box.converse("u", "more", b"\x00") == 1
    # when it is given back, expect the same pairs; when it is acknowledged in full, expect only its own to go
    await box.nack(batch)
    again = await box.take("u")
    assert said(again) == ["hi"]
    await box.ack(again, [again.messages[0].id])
    assert (await box.stats("u")).pairs == 2
    await box.ack(again)
    assert (await box.stats("u")).pairs == 1
    await box.append("u", 3)
    assert said(await box.take("u")) == ["more"]


async def test_pairs_are_bounded_beside_those_in_flight(boxes: Boxes):
    events = []
    box = await boxes.box(conversations=2, settings={"observers": [events.append]})
    for number in range(3):
        await box.converse("u", number, "")
    await box.append("u", "x")
    batch = await box.take("u")
    assert said(batch) == [1, 2]
    for number in range(3, 6):
        assert await box.converse("u", number, "") == min(number - 2, 2)
    await box.nack(batch)
    batch = await box.take("u")
    assert said(batch) == [1, 2]
    await box.ack(batch)
    await box.append("u", "y")
    assert said(await box.take("u")) == [4, 5]
    assert (await box.counts())["dropped.pair_capacity"] == 2
    assert [(e.what, e.reason) for e in events if isinstance(e, Dropped)] == [("conversation pair", "capacity")] * 2


async def test_a_pair_lives_as_long_as_a_message_that_came_within_its_life(quick: Boxes):
    """PITFALL 24: conversations expire before the messages they explain."""
    box = await quick.box(conversation_ttl=0.5)
    await box.converse("waits", "needed", "")
    await box.append("waits", 1)
    await box.converse("late", "not needed", "")
    await until(lambda: old_enough(box, "waits", 0.6), what="the end of the pairs' life")
    await box.append("late", 1)
    assert said(await box.take("waits")) == ["needed"]
    assert said(await box.take("late")) == []
    await box.converse("waits", "next", "")
    assert (await box.counts())["dropped.pair_age"] == 1


async def test_pairs_that_came_meanwhile_keep_their_life(quick: Boxes):
    box = await quick.box(ttl=10, conversation_ttl=1000)
    await box.converse("u", "before", "")
    await box.append("u", 1)
    batch = await box.take("u", lease=5)
    await box.converse("u", "meanwhile", "")
    await box.nack(batch)
    await box.ack(await box.take("u", lease=5))
    assert quick.lives()[box.keys("u")["c"]] > 990_000


async def old_enough(box, user, seconds):
    return (await box.age(user)) > seconds


# -- dead letters ---------------------------------------------------------------------------------------------------


async def die(box, user, *data, error="broken"):
    """A batch that failed too often."""
    await box.extend(user, list(data))
    batch = await box.take(user, max_attempts=1)
    assert await box.nack(batch, error=error) is True
    return batch


async def test_after_its_attempts_a_batch_is_a_dead_letter(boxes: Boxes):
    events = []
    one, two = await boxes.box(settings={"observers": [events.append]}), await boxes.box()
    await one.converse("u", "hi", "hello")
    await one.extend("u", [1, b"\x00"])
    for attempt in (1, 2):
        batch = await one.take("u", max_attempts=3)
        assert batch.attempt == attempt
        assert await one.nack(batch, error=f"no {attempt}") is False
    batch = await one.take("u", max_attempts=3)
    await one.append("u", "next")
    assert await one.nack(batch, error="no 3 \ud800") is True
    # expect it with its last error, and the next message not held up
    (letter,) = await two.dead_letters()
    assert (letter.key, letter.attempts, letter.count, letter.messages) == ("u", 3, 2, ())
    assert letter.error.startswith("no 3")
    assert abs(letter.at - batch.messages[0].at) < 60
    whole = await two.dead_letter(letter.id)
    assert (data_of(whole.messages), whole.messages[0].id) == ([1, b"\x00"], batch.messages[0].id)
    following = await two.take("u")
    assert (data_of(following.messages), following.attempt, said(following)) == (["next"], 1, [])
    assert [(e.key, e.batch, e.attempt) for e in events if isinstance(e, Buried)] == [("u", batch.id, 3)]
    # only one batch of a user is in flight: the letter stays
    with pytest.raises(NotAcquired, match="try again later"):
        await two.replay(letter.id)
    await two.ack(following)
    # when it is replayed, expect the same batch with its pairs, counted anew
    assert await two.replay(letter.id) == 2
    assert await two.dead_letters() == []
    again = await one.take("u")
    assert (again.id, again.attempt, again.messages, said(again)) == (batch.id, 1, batch.messages, ["hi"])
    assert again.fence > following.fence
    await one.ack(again)
    assert (await one.totals()).users == 0


async def test_a_batch_whose_holders_die_goes_to_the_dead_letters(boxes: Boxes):
    box = await boxes.box()
    await box.append("u", 1)
    batch = await box.take("u", lease=0.1)
    batch._taking.hold.abandoned = True
    await box.append("u", 2)
    following = await box.take_when_free("u", max_attempts=1)
    assert (data_of(following.messages), following.attempt) == ([2], 1)
    (letter,) = await box.dead_letters()
    assert (letter.error, letter.attempts) == ("its holders were lost", 1)


async def test_attachments_die_and_come_back_with_their_messages(boxes: Boxes):
    box = await boxes.box()
    message = await box.append("u", 1, pending=["f", "g"])
    await box.resolve("u", message.id, "f", b"file")
    await box.fail("u", message.id, "g")
    await box.nack(await box.take("u", max_attempts=1))
    assert box.keys("u")["a"] not in boxes.lives()
    (letter,) = await box.dead_letters()
    assert dict((await box.dead_letter(letter.id)).messages[0].attachments) == {"f": b"file"}
    await box.append("u", 2)
    await box.replay(letter.id)
    again = await box.take("u")
    assert (data_of(again.messages), dict(again.messages[0].attachments)) == ([1], {"f": b"file"})
    await box.ack(again)
    assert await box.waiting("u") == [2]


async def test_a_message_with_very_many_attachments_can_die(quick: Boxes):
    box = await quick.box()
    names = [f"file {number}" for number in range(5000)]
    try:
        await box.append("u", 1, pending=dict.fromkeys(names, 0.001))
    except ConfigurationError:
        return  # refused before it was sent: as good
    batch = await until(lambda: box.take("u", max_attempts=1), what="the deadline")
    assert await box.nack(batch) is True
    (letter,) = await box.dead_letters()
    assert data_of((await box.dead_letter(letter.id)).messages) == [1]


async def test_a_replay_puts_its_batch_before_what_waits_and_lives(quick: Boxes):
    box = await quick.box(ttl=100)
    await die(box, "u", 1, 2)
    (letter,) = await box.dead_letters()
    await box.extend("u", [3, 4])
    assert await box.replay(letter.id) == 2
    assert (await box.stats("u")).in_flight == 2
    assert await box.waiting("u") == [3, 4]
    assert data_of((await box.take("u")).messages) == [1, 2]


async def test_a_replay_does_not_make_what_waits_younger(quick: Boxes):
    box = await quick.box(ttl=0.8)
    await die(box, "u", 1)
    (letter,) = await box.dead_letters()
    await box.append("u", "waits")
    assert await box.replay(letter.id) == 1
    await until(lambda: nothing_waits(box), within=2, what="the end of a message's life, after a replay")
    assert data_of((await box.take("u")).messages) == [1]


async def nothing_waits(box):
    return await box.count("u") == 0


async def test_a_replay_after_the_index_ended_leaves_nothing_without_an_end(quick: Boxes):
    """Dead letters are kept for longer than the index of a shard in which nothing happens."""
    box = await quick.box(ttl=100)
    await die(box, "u", 1)
    (server,) = quick.backend.primaries()
    server.delete(box.keys("u")["due"])
    (letter,) = await box.dead_letters()
    assert await box.replay(letter.id) == 1
    life = server.pttl(box.keys("u")["due"])
    server.close()
    assert life > 86_400_000, f"the index lives {life} ms"


async def test_letters_are_listed_newest_first_and_purged(boxes: Boxes):
    box = await boxes.box()
    for number in range(4):
        await die(box, f"user {number}", *range(number + 1), error=f"e{number}")
        first = (await box.dead_letters(1))[0]
        await until(lambda first=first: server_moved_on(box, first.at), what="the next millisecond")
    assert [(x.key, x.error, x.count) for x in await box.dead_letters()] == [
        (f"user {n}", f"e{n}", n + 1) for n in (3, 2, 1, 0)
    ]
    assert [x.key for x in await box.dead_letters(2)] == ["user 3", "user 2"]
    newest = (await box.dead_letters(1))[0]
    assert await box.purge(newest.id) == 4
    assert await box.purge(newest.id) == 0
    assert await box.replay(newest.id) == 0
    assert await box.dead_letter(newest.id) is None
    totals = await box.totals()
    assert (totals.dead_letters, totals.counts["dead"], totals.counts["purged"]) == (3, 10, 4)


async def server_moved_on(box, at):
    done = await box.append("clock", 1)
    (seen,) = await box.pop("clock")
    assert seen.id == done.id
    return seen.at > at
