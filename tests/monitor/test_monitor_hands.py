"""Many at once: those that hang, that failed last, or that always have more keep nobody else waiting."""

from __future__ import annotations

import pytest
from http_endpoint import Behaviour, Endpoint, Handler, answers, hangs, late
from monitor_desk import Posts
from monitor_tell import hook, told, with_store

from holdfast import Subscriber
from holdfast.events import NotDelivered
from holdfast.memory import MonitorStore
from support.conditions import until


async def test_those_that_hang_keep_nobody_else_waiting(posts: Posts, store: MonitorStore):
    # Given four hands, three that hang, and one that answers
    with Endpoint(hangs) as a, Endpoint(hangs) as b, Endpoint(hangs) as c, Endpoint() as good:
        post = await with_store(posts, store, workers=4)
        for name, one in (("a", a), ("b", b), ("c", c)):
            await post.do("subscribe", hook(one, name, timeout=60))
        await post.do("subscribe", hook(good, "good"))
        await posts.start(post)
        # when there are changes, expect that the one is told of each at once
        for number in range(5):
            await post.see(number)
            await until(lambda n=number: told(good)[-1:] == [n])
        assert [len(one.requests) for one in (a, b, c)] == [1, 1, 1]
        await until(lambda: len(post.worker._telling) == 3)


def fails_and_then_hangs() -> Behaviour:
    """Each path refuses the first request, and says nothing to all others."""
    seen: set[str] = set()

    def behave(handler: Handler) -> None:
        if handler.path in seen:
            hangs(handler)
        else:
            seen.add(handler.path)
            answers(500)(handler)

    return behave


@pytest.mark.parametrize("retries", [1000, 0])
async def test_those_that_failed_last_get_half_of_the_hands(posts: Posts, store: MonitorStore, retries: int):
    """Also after a dead letter: the next message of a dead receiver is as slow as the last one."""
    # Given four hands, and six that failed once and now hang
    with Endpoint(fails_and_then_hangs()) as dead, Endpoint(late(0.02)) as good:
        post = await with_store(posts, store, workers=4)
        for number in range(6):
            one = Subscriber(
                f"dead-{number}", "webhook", dead.url(f"/{number}"), first=True, retries=retries, retry_delay=0.01,
                timeout=60,
            )  # fmt: skip
            await post.do("subscribe", one)
        await posts.start(post)
        await post.see(0)
        await until(lambda: len(post.events_of(NotDelivered)) == 6)
        await post.see(1)
        await until(lambda: len(dead.requests) == 8, what="two that hang")
        # when another one wants to know
        await post.do("subscribe", hook(good, "good"))
        for number in range(2, 7):
            await post.see(number)
            await until(lambda n=number: told(good)[-1:] == [n])
            assert post.worker._slow <= 2
        # expect that they had two of the four hands all the time
        assert len(dead.requests) == 8


async def test_one_that_always_has_more_does_not_starve_the_others(posts: Posts):
    """One hand, a function whose queue never ends, and another one."""
    post = await posts.post(workers=1)
    busy = post.hears("busy", max_changes=1, sources=("web",))
    rare = post.hears("rare", sources=("rare",))
    await posts.start(post)
    await post.do("observe_many", [("web", "a", number) for number in range(60)])
    await until(lambda: len(busy) > 3)
    await post.see(1, source="rare")
    await until(lambda: rare)
    assert len(busy) < 50, "it had to wait until all else was told"
