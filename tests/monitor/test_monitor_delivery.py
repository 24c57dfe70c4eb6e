"""How subscribers are told: grouped, retried when it is time, given up, in order and once."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from monitor_desk import Post, Posts, queue, states
from monitor_tell import delivered, failed, failing, listening, looked

from holdfast import Delivery, DeliveryFailed
from holdfast.events import Delivered, NotDelivered
from support.conditions import until

# -- what, and how much at once ---------------------------------------------------------------------------------------


async def test_each_hears_what_it_asked_for(posts: Posts):
    post = await posts.post()
    every = post.hears("every")
    news = post.hears("news", first=False)
    prices = post.hears("prices", fields=("price",), min_change={"price": "10%"}, first=False)
    courts = post.hears("courts", keys=(("19:*", "*"),))
    off = post.hears("off", enabled=False)
    await posts.start(post)
    await post.see({"price": 100}, {"price": 101}, {"price": 120, "n": 1}, {"price": 120, "n": 2})
    await post.see({"price": 5}, key=("19:00", 3))
    await until(lambda: len(states(every)) == 5 and courts and len(states(news)) == 3 and prices)
    assert states(news) == [{"price": 101}, {"price": 120, "n": 1}, {"price": 120, "n": 2}]
    assert states(prices) == [{"price": 120, "n": 1}]
    assert states(courts) == [{"price": 5}]
    assert not off


async def test_what_comes_within_the_interval_is_one_message(posts: Posts):
    post, heard, probe = await listening(posts, interval=60)
    # Given a message that was told at once
    await post.see(1)
    await delivered(1, post)
    # when more comes within the interval, expect silence
    await post.see(2, 3, 4)
    await looked(post, probe)
    post.later(59.5)
    await post.see(5)
    await looked(post, probe)
    assert len(heard) == 1
    # and all of it in one message when it is over
    post.later(0.5)
    await delivered(2, post)
    assert states(heard[1:]) == [2, 3, 4, 5]
    # A quiet interval later it is told at once again
    post.later(61)
    await post.see(6)
    await until(lambda: len(heard) == 3)


async def test_what_came_while_it_was_told_waits_for_the_interval_too(posts: Posts):
    go = asyncio.Event()
    post, heard, probe = await listening(posts, interval=60, answer=lambda delivery: go.wait())
    await post.see(1)
    await until(lambda: heard)
    await post.see(2)
    await until(lambda: len(queue(posts.server, "ear")) == 2)
    go.set()
    await delivered(1, post)
    post.later(59.5)
    await looked(post, probe)
    assert len(heard) == 1
    post.later(0.5)
    await until(lambda: states(heard) == [1, 2])


async def test_a_message_has_so_many_changes_at_most(posts: Posts):
    post = await posts.post()
    go = asyncio.Event()
    heard = post.hears(max_changes=3, answer=lambda delivery: go.wait())
    await posts.start(post)
    await post.see(0)
    await until(lambda: heard)
    await post.see(*range(1, 8))
    await until(lambda: len(queue(posts.server, "ear")) == 8)
    go.set()
    await until(lambda: len(states(heard)) == 8)
    assert [states([one]) for one in heard] == [[0], [1, 2, 3], [4, 5, 6], [7]]


async def test_a_delivery_says_what_is_told(posts: Posts):
    clock = posts.drive()
    post = await posts.post()
    heard = post.hears()
    await posts.start(post)
    (seen,) = await post.see({"price": 1}, key=("19:00", 3))
    await until(lambda: heard)
    (one,) = heard
    assert (one.monitor, one.subscriber, one.attempt) == ("venues", "ear", 1)
    assert one.changes[0].id == seen.change
    assert one.changes[0].key == ("19:00", 3)
    assert one.at == pytest.approx(clock.now, abs=1)
    await until(lambda: post.events_of(Delivered))
    (event,) = post.events_of(Delivered)
    assert (event.name, event.subscriber, event.delivery, event.changes, event.attempt) == (
        "venues", "ear", one.id, 1, 1,
    )  # fmt: skip


async def test_a_plain_function_is_called_in_a_thread(posts: Posts):
    post = await posts.post()
    seen: list[Any] = []
    post.monitor.subscriber("plain", first=True)(lambda one: seen.append((threading.current_thread().name, one)))
    await posts.start(post)
    await post.see(1)
    await until(lambda: seen)
    assert seen[0][0] == "holdfast-handler"
    assert states([seen[0][1]]) == [1]


# -- retries ----------------------------------------------------------------------------------------------------------


async def test_what_fails_is_told_again_when_it_is_time_with_the_same_id(posts: Posts):
    # Given a function that refuses three times, and the usual three retries after 5 s
    post, heard, probe = await listening(posts, answer=failing(3))
    await post.see(1)
    for attempt in (2, 3, 4):
        await failed(post, attempt - 1)
        await post.see(attempt * 10)  # what comes after it waits, and does not join it
        post.later(4.5)
        await looked(post, probe)
        assert len(heard) == attempt - 1, "it was told again too early"
        post.later(0.5)
        await until(lambda n=attempt: len(heard) >= n)
    # expect one message four times, and then the rest
    await until(lambda: len(heard) == 5)
    assert [one.attempt for one in heard] == [1, 2, 3, 4, 1]
    assert len({one.id for one in heard[:4]}) == 1
    assert [states([one]) for one in heard] == [[1]] * 4 + [[20, 30, 40]]
    assert [(event.attempt, event.dead) for event in post.events_of(NotDelivered)] == [
        (1, False), (2, False), (3, False),
    ]  # fmt: skip
    await until(lambda: len(post.events_of(Delivered)) >= 2)


async def test_the_pause_grows_by_the_backoff(posts: Posts):
    post, heard, probe = await listening(posts, answer=failing(3), retry_delay=10, backoff=3)
    await post.see(1)
    for attempt, pause in ((2, 10), (3, 30), (4, 90)):
        await failed(post, attempt - 1)
        post.later(pause - 1)
        await looked(post, probe)
        assert len(heard) == attempt - 1
        post.later(1)
        await until(lambda n=attempt: len(heard) == n)


async def test_a_receiver_may_ask_for_more_time(posts: Posts):
    post, heard, probe = await listening(posts, answer=failing(1, lambda: DeliveryFailed("busy", after=120)))
    await post.see(1)
    await failed(post, 1)
    post.later(119)
    await looked(post, probe)
    assert len(heard) == 1
    post.later(1)
    await until(lambda: len(heard) == 2)


async def test_no_worker_waits_for_a_retry(posts: Posts):
    """One hand, and a subscriber that fails: the others are told meanwhile."""
    post, heard, probe = await listening(posts, workers=1, answer=failing(100), retry_delay=3600)
    await post.see(1)
    await failed(post, 1)
    for _ in range(5):
        await looked(post, probe)
    assert len(heard) == 1
    status = await post.do("status")
    assert (status.waiting, status.failing) == ({"ear": 1, "probe": 0}, {"ear": 1})


async def test_what_fails_for_good_is_a_dead_letter_and_the_next_one_is_told(posts: Posts):
    go, refuse = asyncio.Event(), failing(1, lambda: DeliveryFailed("gone", retry=False))

    async def gone(delivery: Delivery) -> None:
        await go.wait()
        refuse(delivery)

    post, heard, probe = await listening(posts, answer=gone)
    await post.see(1)
    await until(lambda: heard)
    await post.see(2)
    await until(lambda: len(queue(posts.server, "ear")) == 2)
    go.set()
    await failed(post, 1)
    assert post.events_of(NotDelivered)[0].dead
    # A receiver that is gone is not asked in a loop: the next message has to wait as long as a retry
    post.later(4.5)
    await looked(post, probe)
    assert len(heard) == 1
    post.later(0.5)
    await until(lambda: len(heard) == 2)
    assert states(heard) == [1, 2]
    assert [one.attempt for one in heard] == [1, 1]
    (letter,) = await post.do("dead_letters")
    assert (letter.subscriber, letter.attempts, states([letter])) == ("ear", 1, [1])
    assert letter.error.startswith("DeliveryFailed: gone")


async def test_after_the_last_retry_it_is_a_dead_letter(posts: Posts):
    post, heard, _ = await listening(posts, answer=failing(3), retries=1, max_changes=1)
    await post.see(1)
    await failed(post, 1)
    await post.see(2)
    for times in (2, 3):
        post.later(5)
        await failed(post, times)
    post.later(5)
    await until(lambda: len(post.events_of(Delivered)) == 1)
    assert [one.attempt for one in heard] == [1, 2, 1, 2]
    assert states(heard) == [1, 1, 2, 2]
    (letter,) = await post.do("dead_letters")
    assert (letter.attempts, states([letter])) == (2, [1])
    assert (await post.do("status")).failing == {}


@pytest.mark.parametrize("error", [
    ValueError("\ud800 half"), type("Odd", (Exception,), {"after": "soon", "retry": "never"})("x"),
    ValueError("\0" * 5000), type("Mute", (Exception,), {"__str__": lambda self: ""})(), TimeoutError(),
], ids=["half", "odd", "long", "mute", "timeout"])  # fmt: skip
async def test_whatever_is_raised_is_a_failure(posts: Posts, error: Exception):
    post, _, _ = await listening(posts, answer=failing(2, lambda: error), retries=1)
    await post.see(1)
    await failed(post, 1)
    post.later(5)
    await failed(post, 2)
    (letter,) = await post.do("dead_letters")
    assert letter.error.startswith(type(error).__name__)


async def test_who_takes_too_long_has_failed(posts: Posts):
    go = asyncio.Event()
    post, heard, _ = await listening(posts, timeout=0.05, answer=lambda delivery: go.wait())
    await post.see(1)
    await failed(post, 1)
    go.set()
    post.later(5)
    await until(lambda: post.events_of(Delivered))
    assert [one.attempt for one in heard] == [1, 2]


# -- quiet hours ------------------------------------------------------------------------------------------------------


def to(post: Post, hour: int, minute: int = 0, days: int = 0) -> None:
    assert post.clock is not None
    now = datetime.fromtimestamp(post.clock.now, UTC)
    then = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    post.later(then.timestamp() - now.timestamp() + days * 86400)


async def test_what_comes_in_quiet_hours_is_told_at_their_end(posts: Posts):
    post, heard, probe = await listening(posts, quiet=("22:00", "07:00"))
    to(post, 21, 59)
    await post.see(1)
    await delivered(1, post)
    to(post, 22, 30)
    await post.see(2)
    await looked(post, probe)
    to(post, 6, 59, days=1)
    await post.see(3)
    await looked(post, probe)
    assert len(heard) == 1
    to(post, 7, 1)
    await until(lambda: len(heard) == 2)
    assert states(heard[1:]) == [2, 3]
    assert heard[1].attempt == 1


async def test_a_retry_waits_for_the_end_of_quiet_hours_too(posts: Posts):
    post, heard, probe = await listening(posts, quiet=("22:00", "07:00"), answer=failing(1), retry_delay=120)
    to(post, 21, 59)
    await post.see(1)
    await failed(post, 1)
    to(post, 22, 2)
    await looked(post, probe)
    await looked(post, probe)
    assert len(heard) == 1
    to(post, 7, 1, days=1)
    await until(lambda: len(heard) == 2)
    assert heard[0].id == heard[1].id
    assert states(heard) == [1, 1]
