"""What a review found: each of these went wrong once."""

from __future__ import annotations

import asyncio
import datetime
import logging
import threading

import pytest
from absorber_crew import Crew, Seen, gentle, seen

from holdfast import Holdfast, InvalidPayload, LeaseLost, TooLarge
from holdfast.events import Dropped, HandlerFailed
from support.conditions import until

DAY = 86_400_000


async def test_a_refused_subscription_starts_no_storm(crew: Crew):
    # Given a user who may not subscribe
    crew.server.execute_command("ACL", "SETUSER", "default", "-ssubscribe")
    try:
        log: list[Seen] = []
        async with Holdfast(crew.backend.url, sweep=0.2) as hf:
            inbox = hf.buffer("m")
            hf.absorber(inbox, threshold=1)(gentle(log, "coroutine"))
            work = asyncio.create_task(hf.work())
            # when it works, expect that it finds its users by looking, and that nothing piles up
            await inbox.append("ann", 1)
            await until(lambda: log, within=10)
            await inbox.append("bob", 2)
            await until(lambda: len(log) == 2, within=10)
            assert len(hf._open.hub._watchers) <= 2
            hf.stop_work()
            await work
    finally:
        crew.server.execute_command("ACL", "SETUSER", "default", "+ssubscribe")


async def test_somebody_elses_lost_lease_is_an_error_of_the_handler(crew: Crew):
    # Given a handler whose own lock is lost, not its batch
    log: list[Seen] = []

    async def handle(batch):
        log.append(seen(batch))
        if batch.attempt == 1:
            raise LeaseLost("treat it as unprotected: a lock was lost", reason="expired")

    member = await crew.worker(handle, threshold=1, backoff=0.01)
    await member.inbox.append("ann", 1)
    # expect the batch to be given back, and to come again
    await until(lambda: len(log) == 2, within=5)
    assert [one.attempt for one in log] == [1, 2]
    assert any(isinstance(event, HandlerFailed) for event in member.events)


async def test_the_same_in_a_body_gives_the_batch_back(crew: Crew):
    async with Holdfast(crew.backend.url) as hf:
        inbox = hf.buffer("m")
        await inbox.append("ann", 1)
        batch = await inbox.take("ann")
        with pytest.raises(LeaseLost, match="a lock"):
            async with batch:
                raise LeaseLost("treat it as unprotected: a lock was lost", reason="expired")
        assert not (await inbox.stats("ann")).held


async def test_returning_after_a_partial_acknowledgement_acknowledges_the_rest(crew: Crew):
    async def handle(batch):
        await batch.ack([batch.messages[0].id])

    member = await crew.worker(handle, threshold=3)
    await member.inbox.extend("ann", [1, 2, 3])
    await until(lambda: crew.server.exists(member.inbox._spec.place("ann").key) == 0, within=5)
    assert (await member.inbox.totals()).counts["absorbed"] == 3


async def test_a_handler_that_blocks_its_loop_loses_its_batch_in_the_end(crew: Crew):
    # Given a coroutine that blocks the loop it runs in, past its time limit
    over = threading.Event()

    async def handle(batch):
        over.wait(20)  # the block itself

    member = await crew.worker(handle, "sync", threshold=1, timeout=0.2, lease=0.4)
    async with Holdfast(crew.backend.url) as other:
        await member.do(member.inbox.append, "ann", 1)
        inbox = other.buffer(member.inbox.name)

        async def held() -> bool:
            return (await inbox.stats("ann")).held

        await until(held, within=5)

        # expect it to be free before the block ends
        async def free() -> bool:
            return not await held()

        try:
            await until(free, what="the batch, although its holder is still blocked")
        finally:
            over.set()


async def test_a_worker_that_is_cancelled_ends_whatever_comes_at_that_moment(crew: Crew):
    """`asyncio.wait_for` of Python 3.11 swallows a cancellation that comes together with what was waited for."""
    for between in range(6):
        for told_first in (True, False):
            member = await crew.worker(gentle([], "coroutine"))
            worker = member.worker
            steps = [worker._prepare_again.set, member.working.cancel]
            for step in steps if told_first else reversed(steps):
                step()
                for _ in range(between):
                    await asyncio.sleep(0)
            done, _ = await asyncio.wait([member.working], timeout=5)
            assert done, f"the worker goes on: {between} steps, told first: {told_first}"
            await crew.retire(member)


async def test_a_failure_is_logged_where_nobody_observes(crew: Crew, caplog: pytest.LogCaptureFixture):
    async def handle(batch):
        raise ZeroDivisionError("a typo")

    with caplog.at_level(logging.WARNING, logger="holdfast"):
        async with Holdfast(crew.backend.url) as hf:
            inbox = hf.buffer("m")
            hf.absorber(inbox, threshold=1)(handle)
            work = asyncio.create_task(hf.work())
            await inbox.append("ann", "secret payload")
            await until(lambda: caplog.records, within=5)
            hf.stop_work()
            await work
    assert "a typo" in caplog.text
    assert "secret payload" not in caplog.text


async def test_flush_lets_all_go_however_many_batches_it_takes(crew: Crew):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "coroutine"), threshold=50, batch=10)
    await member.inbox.extend("ann", list(range(30)))
    assert await member.inbox.flush("ann")
    await until(lambda: sum(len(one.data) for one in log) == 30, within=5)
    assert [len(one.data) for one in log] == [10, 10, 10]


async def test_attachments_are_bounded_like_messages(crew: Crew):
    async with Holdfast(crew.backend.url) as hf:
        inbox = hf.buffer("m", max_bytes=10_000, max_message=6_000)
        message = await inbox.append("ann", "look", pending={"a": 60, "b": 60})
        assert await inbox.resolve("ann", message.id, "a", b"x" * 5_900)
        with pytest.raises(TooLarge, match="10000 bytes"):
            await inbox.resolve("ann", message.id, "b", b"x" * 5_900)
        assert await inbox.resolve("ann", message.id, "b", b"small")
        batch = await inbox.take("ann")
        assert set(batch.messages[0].attachments) == {"a", "b"}
        await batch.ack()


@pytest.mark.parametrize(
    "when", [datetime.datetime.now(datetime.UTC), datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC)]
)
async def test_points_in_time_are_no_json(crew: Crew, when: datetime.datetime):
    async with Holdfast(crew.backend.url) as hf:
        with pytest.raises(InvalidPayload, match="points in time"):
            await hf.buffer("m").append("ann", {"when": [when]})


async def test_the_index_outlives_its_users(crew: Crew):
    # Given messages that live for a month, and an index that is about to end
    async with Holdfast(crew.backend.url) as hf:
        inbox = hf.buffer("m", ttl=30 * 86_400)
        await inbox.append("ann", 1)
        due = inbox._spec.place("ann").shard.due
        crew.server.pexpire(due, 60_000)
        # when somebody touches the user, expect the index to live as long as the messages
        await inbox.flush("ann")
        assert crew.server.pttl(due) > 30 * DAY


async def test_an_attachment_that_may_take_longer_than_the_message_lives_is_looked_at_in_time(crew: Crew):
    log: list[Seen] = []
    member = await crew.worker(gentle(log, "coroutine"), threshold=1, buffer={"ttl": 1.0})
    await member.inbox.append("ann", 1, pending={"slow": 3600})
    await until(lambda: [e for e in member.events if isinstance(e, Dropped) and e.reason == "age"], within=5)
    assert (await member.inbox.totals()).counts.get("dropped.age") == 1


async def test_what_was_given_back_cannot_be_acknowledged(crew: Crew):
    async with Holdfast(crew.backend.url) as hf:
        inbox = hf.buffer("m")
        await inbox.append("ann", 1)
        batch = await inbox.take("ann")
        await batch.nack()
        with pytest.raises(LeaseLost, match="given back"):
            await batch.ack()
        again = await inbox.take("ann")
        async with again:
            await again.nack()  # by hand, inside: no error at the end
        last = await inbox.take("ann")
        assert await last.ack() == 0
        assert await last.ack() == 0


async def test_a_body_whose_client_was_closed_is_told(crew: Crew):
    hf = await Holdfast(crew.backend.url).open()
    inbox = hf.buffer("m")
    await inbox.append("ann", 1)
    batch = await inbox.take("ann")
    with pytest.raises(LeaseLost, match="given back"):
        async with batch:
            await hf.close()
