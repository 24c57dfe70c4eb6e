"""How subscribers are told: grouped, retried when it is time, given up, in order and once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from monitor_desk import BASE, Post, Posts, queue, states

from holdfast import Delivery, DeliveryFailed
from holdfast.events import Delivered, Dropped, NotDelivered, ServerWarning
from holdfast.monitor import flows, worker
from support.conditions import until


def failing(times: int, error: Callable[[], Exception] = lambda: ValueError("not now")) -> Callable[[Delivery], None]:
    """Refuses so many attempts."""
    left = [times]

    def answer(delivery: Delivery) -> None:
        if left[0]:
            left[0] -= 1
            raise error()

    return answer


async def looked(post: Post, probe: list[Any]) -> None:
    """A worker has looked who is due since this was called: what another subscriber had to hear it has heard."""
    before = len(probe)
    await post.see(f"probe {before}", key="probe", source="probe")
    await until(lambda: len(probe) > before, what="a worker that looks")


async def failed(post: Post, times: int) -> None:
    """So many attempts have failed, and the server knows."""
    await until(lambda: len(post.events_of(NotDelivered)) == times, what=f"{times} failures")


async def listening(posts: Posts, **options: Any) -> tuple[Post, list[Any], list[Any]]:
    """A worker with one function that is told of `web`, with these options, and a probe. Their clock is the test's."""
    clock = posts.clock or posts.drive()
    post = await posts.post(workers=options.pop("workers", 10))
    heard = post.hears("ear", sources=("web",), **options)
    probe = post.hears("probe", sources=("probe",))
    await posts.start(post)
    assert clock is post.clock
    return post, heard, probe


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
    await until(lambda: len(heard) == 1)
    # when more comes within the interval, expect silence
    await post.see(2, 3, 4)
    await looked(post, probe)
    post.later(59.5)
    await post.see(5)
    await looked(post, probe)
    assert len(heard) == 1
    # and all of it in one message when it is over
    post.later(0.5)
    await until(lambda: len(heard) == 2)
    assert states(heard[1:]) == [2, 3, 4, 5]
    # A quiet interval later it is told at once again
    post.later(61)
    await post.see(6)
    await until(lambda: len(heard) == 3)


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
    await until(lambda: len(heard) == 1)
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


# -- the end, and what it leaves --------------------------------------------------------------------------------------


async def test_stop_work_lets_those_finish_who_are_being_told(posts: Posts):
    post = await posts.post()
    go, ended = asyncio.Event(), []

    async def slow(delivery: Delivery) -> None:
        await go.wait()
        ended.append(delivery.id)

    heard = post.hears("ear", slow)
    await posts.start(post)
    await post.see(1)
    await until(lambda: heard)
    await post.see(2)
    post.hf.stop_work()
    await asyncio.sleep(0)
    assert not post.working.done()
    go.set()
    await asyncio.wait_for(post.working, 5)
    assert ended == [heard[0].id]
    # expect that it counts as told, and that the rest waits for the next worker
    other = await posts.post()
    more = other.hears()
    await posts.start(other)
    await until(lambda: more)
    assert states(more) == [2]


async def test_who_was_cancelled_in_the_middle_hears_the_same_message_again(posts: Posts):
    # Given a worker that is cancelled while it tells
    one, two = await posts.post(), await posts.post()
    heard = one.hears("ear", lambda delivery: asyncio.Event().wait())
    more = two.hears("ear")
    await posts.start(one)
    await one.see(1)
    await until(lambda: heard)
    await one.see(2)
    await until(lambda: len(queue(posts.server, "ear")) == 2)
    one.working.cancel()
    await asyncio.wait([one.working])
    # when another one works, expect the same message, at once, and then what came after it
    await posts.start(two)
    await until(lambda: len(more) == 2, within=3)
    assert (more[0].id, more[0].attempt, more[0].changes) == (heard[0].id, 2, heard[0].changes)
    assert states(more) == [1, 2]


async def test_who_died_while_it_told_is_followed_when_its_time_is_over(posts: Posts, monkeypatch: pytest.MonkeyPatch):
    # Given a worker that is gone with what it was about to tell
    posts.drive()
    one, two = await posts.post(), await posts.post()
    heard = one.hears("ear", lambda delivery: asyncio.Event().wait(), timeout=2, sources=("web",))
    more = two.hears("ear", timeout=2, sources=("web",))
    probe = two.hears("probe", sources=("probe",))
    await posts.start(one)
    await one.see(1)
    await until(lambda: heard)
    with monkeypatch.context() as gone:
        gone.setattr(one.hf._open, "background", lambda work: work.close())  # it cannot say anything any more
        one.working.cancel()
        await asyncio.wait([one.working])
    # when another one works: not before the time is over in which the first may still be at it
    await posts.start(two)
    await two.see(2)
    two.later(2 + flows.MARGIN - 0.5)
    await looked(two, probe)
    assert not more
    two.later(0.5)
    await until(lambda: len(more) == 2)
    # expect the same message, then what came after it
    assert (more[0].id, more[0].attempt, more[0].changes) == (heard[0].id, 2, heard[0].changes)
    assert states(more) == [1, 2]


async def test_a_message_that_ends_its_workers_is_given_up(posts: Posts, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "LIVES", 2)
    post, heard, _ = await listening(posts, answer=failing(1), retry_delay=60)
    await post.see(1)
    await failed(post, 1)
    posts.server.hset(f"{BASE}d:ear", "attempt", 5)  # as if workers had died
    post.later(60)
    await failed(post, 2)
    assert len(heard) == 1, "it was told once more"
    (letter,) = await post.do("dead_letters")
    assert "look at what ends its workers" in letter.error


async def behind(posts: Posts, answer: Callable[[Delivery], Any]) -> tuple[Post, list[Any]]:
    """One that is told of 1 and has to wait, while 2 waits behind it and the log goes on, beyond its end."""
    posts.drive()
    post = await posts.post(backlog=10)
    heard = post.hears("ear", answer, sources=("web",), retry_delay=60)
    probe = post.hears("probe", sources=("probe",))
    await posts.start(post)
    await post.see(1)
    await until(lambda: heard)
    await post.see(2)
    await until(lambda: len(posts.server.lrange(f"{BASE}q:ear", 0, -1)) == 2)
    for _ in range(12):
        await looked(post, probe)
    return post, heard


async def test_what_a_failing_one_waits_for_outlives_the_log(posts: Posts):
    post, heard = await behind(posts, failing(1))
    post.later(60)
    await until(lambda: len(states(heard)) == 3)
    assert states(heard) == [1, 1, 2]
    assert not post.events_of(Dropped)


async def test_what_a_slow_one_waits_for_outlives_the_log_too(posts: Posts):
    go = asyncio.Event()
    post, heard = await behind(posts, lambda delivery: go.wait())
    go.set()
    await until(lambda: states(heard) == [1, 2])
    assert not post.events_of(Dropped)


async def test_a_change_that_the_log_has_lost_is_counted(posts: Posts):
    """Somebody has removed it by hand."""
    post = await posts.post()
    go = asyncio.Event()
    heard = post.hears("ear", lambda delivery: go.wait())
    await posts.start(post)
    await post.see(1)
    await until(lambda: heard)
    await post.see(2)
    await until(lambda: len(queue(posts.server, "ear")) == 2)
    posts.server.xdel(f"{BASE}log", f"{queue(posts.server, 'ear')[1]}-0")
    go.set()
    await until(lambda: post.events_of(Dropped))
    assert [(event.reason, event.count) for event in post.events_of(Dropped)] == [("gone before it was told", 1)]
    await post.see(3)
    await until(lambda: states(heard) == [1, 3])


# -- several workers --------------------------------------------------------------------------------------------------


async def test_one_subscriber_is_told_by_one_worker_at_a_time(posts: Posts):
    crew = [await posts.post() for _ in range(3)]
    busy: list[str] = []
    told: list[Delivery] = []
    most = [0]

    async def count(delivery: Delivery) -> None:
        told.append(delivery)
        busy.append(delivery.id)
        most[0] = max(most[0], len(busy))
        await asyncio.sleep(0.002)
        busy.remove(delivery.id)

    heard = [post.hears("ear", count, max_changes=2) for post in crew]
    await posts.start(*crew)
    for number in range(40):
        await crew[number % 3].see(number)
    await until(lambda: sum(len(states(one)) for one in heard) == 40)
    assert most[0] == 1, "two told it at the same time"
    assert states(told) == list(range(40))


async def test_workers_share_the_work(posts: Posts):
    """Two workers with one hand each, and two that take long: each tells one."""
    crew = [await posts.post(workers=1) for _ in range(2)]
    go = asyncio.Event()
    heard = [[post.hears(name, lambda delivery: go.wait()) for name in ("x", "y")] for post in crew]
    await posts.start(*crew)
    await crew[0].see(1)
    await until(lambda: all(any(lists) for lists in heard), what="both at work")
    assert sorted(len(one) for lists in heard for one in lists) == [0, 0, 1, 1]
    go.set()


async def test_a_worker_that_stops_is_followed_by_another(posts: Posts):
    one, two = await posts.post(), await posts.post()
    heard, more = one.hears(), two.hears()
    await posts.start(one, two)
    await one.see(1)
    await until(lambda: len(states(heard + more)) == 1)
    await one.stop()
    await two.see(2)
    await until(lambda: len(states(heard + more)) == 2)
    await two.stop()


@pytest.mark.parametrize("twin", ["async", "sync"])
async def test_work_can_be_run_again(posts: Posts, twin: str):
    post = await posts.post(twin)
    heard = [post.hears(name) for name in ("x", "y", "z")]
    for number in range(3):
        await posts.start(post)
        await post.see(number)
        await until(lambda n=number: all(states(one) == list(range(n + 1)) for one in heard))
        await post.stop()
    assert not [event for event in post.events_of(ServerWarning) if "monitor" in event.message]
