"""Workers that stop, are cancelled or die while they tell, that share the work, and a log that goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from monitor_desk import BASE, Post, Posts, log_ids, queue, states
from monitor_tell import failed, failing, listening, looked

from holdfast import Delivery
from holdfast.events import Dropped, ServerWarning
from holdfast.monitor import flows, worker
from support.conditions import until

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
    for _ in range(3):  # something older, for which nobody waits
        await looked(post, probe)
    await post.see(1)
    await until(lambda: heard)
    await post.see(2)
    await until(lambda: len(queue(posts.server, "ear")) == 2)
    ids = queue(posts.server, "ear")
    for _ in range(25):
        await looked(post, probe)
    assert not set(ids) & set(log_ids(posts.server)), "the log was long enough"
    return post, heard


async def test_what_a_failing_one_waits_for_outlives_the_log(posts: Posts):
    post, heard = await behind(posts, failing(1))
    await failed(post, 1)
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
