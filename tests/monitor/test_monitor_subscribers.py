"""Who is told: functions of other processes, those in the store, and what happens while they change."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from http_endpoint import Endpoint, answers, hangs
from monitor_desk import BASE, Posts, queue, states
from monitor_tell import delivered, hook, told, with_store

from holdfast import ConfigurationError, Subscriber, Unavailable
from holdfast.events import Delivered, Dropped, NotDelivered, ServerWarning
from holdfast.memory import MonitorStore
from holdfast.monitor import roster
from support.conditions import until

# -- in the store -----------------------------------------------------------------------------------------------------


async def test_a_webhook_is_told_and_the_push_is_logged(posts: Posts, store: MonitorStore, endpoint: Endpoint):
    post = await with_store(posts, store)
    await posts.start(post)
    await post.do("subscribe", hook(endpoint))
    await post.see({"price": 1}, {"price": 2})
    await until(lambda: told(endpoint) == [{"price": 1}, {"price": 2}])
    await until(lambda: sum(event.changes for event in post.events_of(Delivered)) == 2)
    await post.stop()
    pushes = await post.do("pushes", "hook")
    assert {one.outcome for one in pushes} == {"delivered"}
    assert {one.delivery for one in pushes} == {one.headers["idempotency-key"] for one in endpoint.requests}
    history = await post.do("history", "web", "a")
    assert [one.state for one in history] == [{"price": 2}, {"price": 1}]


async def test_a_subscriber_added_while_changes_flow_is_told_from_then_on(
    posts: Posts, store: MonitorStore, endpoint: Endpoint
):
    post, other = await with_store(posts, store), await with_store(posts, store)
    heard = post.hears()
    await posts.start(post)
    await post.see(1)
    await until(lambda: states(heard) == [1])
    await other.do("subscribe", hook(endpoint))  # by another process
    await post.see(2)
    await until(lambda: told(endpoint) == [2])
    assert [one.name for one in await other.do("subscribers")] == ["ear", "hook"]


async def test_a_new_address_is_used_at_once_also_by_a_retry(posts: Posts, store: MonitorStore):
    """Also by a worker that never reads the log, because another one does."""
    with Endpoint(answers(500)) as old, Endpoint() as new:
        post = await with_store(posts, store)
        await post.do("subscribe", hook(old, retry_delay=0.02, retries=1000))
        await posts.start(post)
        await post.see(1)
        await until(lambda: len(old.requests) >= 2)
        posts.server.set(f"{BASE}p:deliver", "somebody else", ex=30)
        await post.do("subscribe", hook(new))
        await until(lambda: new.requests, within=2)
        assert len({one.headers["idempotency-key"] for one in (*old.requests, *new.requests)}) == 1
        assert told(new) == [1]


async def test_who_is_switched_off_is_told_nothing_more(posts: Posts, store: MonitorStore, endpoint: Endpoint):
    posts.drive()
    post = await with_store(posts, store)
    heard = post.hears()
    endpoint.always(answers(500))
    await post.do("subscribe", hook(endpoint))
    await posts.start(post)
    await post.see(1)
    await until(lambda: post.events_of(NotDelivered))
    await post.do("subscribe", hook(endpoint, enabled=False))
    await post.see(2)
    post.later(5)
    await until(lambda: states(heard) == [1, 2])
    await until(lambda: not queue(posts.server, "hook"), what="what waited for it being dropped")
    assert len(endpoint.requests) == 1


async def test_who_unsubscribes_is_told_nothing_more(posts: Posts, store: MonitorStore, endpoint: Endpoint):
    posts.drive()
    post = await with_store(posts, store)
    heard = post.hears()
    endpoint.always(answers(500))
    await post.do("subscribe", hook(endpoint))
    await posts.start(post)
    await post.see(1)
    await until(lambda: post.events_of(NotDelivered))
    assert await post.do("unsubscribe", "hook")
    assert not await post.do("unsubscribe", "hook")
    assert queue(posts.server, "hook") == []
    await post.see(2)
    post.later(5)
    await until(lambda: states(heard) == [1, 2])
    assert len(endpoint.requests) == 1
    left = [key for key in posts.server.keys(f"{BASE}*") if b"hook" in key]
    assert left == []
    assert posts.server.zscore(f"{BASE}due", "hook") is posts.server.zscore(f"{BASE}slow", "hook") is None


async def test_who_unsubscribes_while_it_is_told(posts: Posts, store: MonitorStore, endpoint: Endpoint):
    """What is under way cannot be called back; nothing comes after it, and nothing stays."""
    post = await with_store(posts, store)
    endpoint.always(hangs)
    await post.do("subscribe", hook(endpoint))
    await posts.start(post)
    await post.see(1)
    await until(lambda: endpoint.requests)
    await post.see(2)
    await post.do("unsubscribe", "hook")
    endpoint.release.set()
    await until(lambda: not post.worker._telling)
    await post.see(3)
    assert (await post.do("status")).waiting == {}
    assert not [key for key in posts.server.keys(f"{BASE}*") if key.endswith(b":hook")]
    assert len(endpoint.requests) == 1


async def test_a_change_in_the_database_by_hand_is_noticed_after_a_minute(
    posts: Posts, store: MonitorStore, endpoint: Endpoint
):
    # Given a worker whose own clock is the test's
    post = await with_store(posts, store)
    real, moved = post.hf._core.clock, [0.0]
    post.hf._core.clock = lambda: real() + moved[0]
    heard = post.hears()
    await posts.start(post)
    await post.see(1)
    await until(lambda: states(heard) == [1])
    # when the table is changed without a word
    store.put_subscriber("venues", hook(endpoint))
    moved[0] = roster.FRESH - 5
    await post.see(2)
    await until(lambda: states(heard) == [1, 2])
    assert not endpoint.requests
    # expect that it is seen after a minute
    moved[0] = roster.FRESH + 1
    await post.see(3)
    await until(lambda: told(endpoint) == [3])


class Broken:
    """A store whose reading of subscribers fails while it is told to."""

    def __init__(self, store: MonitorStore) -> None:
        self._store = store
        self.error: Exception | None = None
        self.asked = 0

    def subscribers(self, monitor: str) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self._store.subscribers(monitor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_while_the_database_is_away_those_who_subscribed_before_are_told(
    posts: Posts, store: MonitorStore, endpoint: Endpoint
):
    broken = Broken(store)
    post = await with_store(posts, broken)  # type: ignore[arg-type]
    real, moved = post.hf._core.clock, [0.0]
    post.hf._core.clock = lambda: real() + moved[0]
    await post.do("subscribe", hook(endpoint))
    await posts.start(post)
    await post.see(1)
    await until(lambda: told(endpoint) == [1])
    broken.error = Unavailable("away")
    moved[0] = roster.FRESH + 1
    await post.see(2)
    await until(lambda: told(endpoint) == [1, 2])
    assert any("away" in event.message for event in post.events_of(ServerWarning))


async def test_nobody_is_passed_over_while_the_database_is_away(posts: Posts, store: MonitorStore, endpoint: Endpoint):
    """A subscriber was added, and cannot be read: changes wait in the log until it can."""
    broken = Broken(store)
    post = await with_store(posts, broken)  # type: ignore[arg-type]
    heard = post.hears()
    await posts.start(post)
    await post.see(1)
    await until(lambda: states(heard) == [1])
    broken.error = Unavailable("away")
    await post.do("subscribe", hook(endpoint))
    before = broken.asked
    await post.see(2)
    await until(lambda: broken.asked > before)
    assert not endpoint.requests
    broken.error = None
    post.ring()
    await until(lambda: told(endpoint) == [2])
    await until(lambda: states(heard) == [1, 2])


async def test_a_receiver_that_says_when_is_asked_then(posts: Posts, store: MonitorStore, endpoint: Endpoint):
    posts.drive()
    endpoint.behaviours[:] = [answers(503, Retry_After="120"), answers(200)]
    post = await with_store(posts, store)
    heard = post.hears()
    await post.do("subscribe", hook(endpoint, retry_delay=1))
    await posts.start(post)
    await post.see(1)
    await until(lambda: post.events_of(NotDelivered))
    await delivered(1, post)
    post.later(119)
    await post.see(2)
    await until(lambda: states(heard) == [1, 2])
    assert len(endpoint.requests) == 1
    post.later(1)
    await until(lambda: len(endpoint.requests) >= 2)
    one, two = endpoint.requests[:2]
    assert one.headers["idempotency-key"] == two.headers["idempotency-key"]
    assert (one.body, two.headers["holdfast-attempt"]) == (two.body, "2")


async def test_a_name_is_a_functions_or_in_the_store(posts: Posts, store: MonitorStore, endpoint: Endpoint):
    post = await with_store(posts, store)
    post.hears("ear")
    await posts.start(post)
    await until(lambda: posts.server.hexists(f"{BASE}code", "ear"))
    with pytest.raises(ConfigurationError, match="pass another name"):
        await post.do("subscribe", hook(endpoint, "ear"))


async def test_one_who_can_never_be_told_is_refused(posts: Posts, store: MonitorStore):
    post = await posts.post(store=store)
    for target in ("http://127.0.0.1/", "ftp://example.com", "nonsense"):
        with pytest.raises(ConfigurationError):
            await post.do("subscribe", Subscriber("hook", "webhook", target))
    assert await post.do("subscribers") == []


# -- functions --------------------------------------------------------------------------------------------------------


async def test_a_process_without_the_function_lets_it_have_its_changes(posts: Posts):
    # Given a function in one process, and another one that reads the log
    one, two = await posts.post(), await posts.post()
    heard = one.hears("ear")
    await posts.start(one)
    await until(lambda: posts.server.hexists(f"{BASE}code", "ear"))
    await one.stop()
    await posts.start(two)
    # when there is a change, expect that it waits for whoever has the function
    await two.see(1)
    await until(lambda: queue(posts.server, "ear"))
    assert (await two.do("status")).waiting == {"ear": 1}
    await two.stop()
    await posts.start(one)
    await until(lambda: states(heard) == [1])


async def test_a_function_that_the_server_forgot_is_said_again(posts: Posts):
    post = await posts.post()
    heard = post.hears("ear")
    await posts.start(post)
    await post.see(1)
    await until(lambda: states(heard) == [1])
    posts.server.flushall()  # as a failover to an empty replica
    await post.see("lost")

    numbers = itertools.count(2)

    async def again() -> bool:
        await post.see(next(numbers))
        return len(states(heard)) > 2

    await until(again, within=5, what="the function being told again")


async def test_functions_stay_known_as_long_as_somebody_works(posts: Posts):
    """Each look at the log prolongs what the server knows of them."""
    post = await posts.post()
    post.hears("ear")
    await posts.start(post)
    await until(lambda: posts.server.hexists(f"{BASE}code", "ear"))
    keys = [f"{BASE}code", f"{BASE}subs", f"{BASE}cur"]
    for key in keys:
        posts.server.pexpire(key, 60_000)
    post.ring()
    await until(lambda: all(posts.server.pttl(key) > 3_600_000 for key in keys))


async def test_a_function_that_was_struck_stays_away(posts: Posts):
    post = await posts.post()
    heard, probe = post.hears("ear"), post.hears("probe")
    await posts.start(post)
    await post.see(1)
    await until(lambda: states(heard) == states(probe) == [1])
    assert await post.do("unsubscribe", "ear")
    await post.see(2)
    await until(lambda: states(probe) == [1, 2])
    assert [one.name for one in await post.do("subscribers")] == ["probe"]
    assert states(heard) == [1]


async def test_options_of_a_function_travel_with_it(posts: Posts):
    one, two = await posts.post(), await posts.post()
    one.hears("ear", keys=(("19:*", "?"),), min_change={"price": "5%"}, quiet=("22:00", "07:00"), secret="hush")
    await posts.start(one)
    await until(lambda: posts.server.hexists(f"{BASE}code", "ear"))
    (known,) = await two.do("subscribers")
    assert replace(one.monitor._parts.functions["ear"], secret="") == known
    assert b"hush" not in posts.server.hget(f"{BASE}code", "ear")


# -- a fleet of which only some know the store ------------------------------------------------------------------------


async def test_a_process_without_the_store_passes_nobody_over(posts: Posts, store: MonitorStore, endpoint: Endpoint):
    knows, knows_not = await with_store(posts, store), await posts.post()
    heard = knows_not.hears("ear")
    endpoint.always(answers(500))
    await knows.do("subscribe", hook(endpoint, retry_delay=0.05, retries=1000))
    await posts.start(knows, knows_not)
    await until(lambda: posts.server.hexists(f"{BASE}code", "ear"))
    for number in range(10):
        await knows_not.see(number)
    await until(lambda: states(heard) == list(range(10)))
    await until(lambda: len(endpoint.requests) > 2)
    endpoint.always(answers(200))
    await until(lambda: told(endpoint)[-1] == 9)
    accepted = [event.changes for event in knows.events_of(Delivered)]
    await until(lambda: sum(event.changes for event in knows.events_of(Delivered)) == 10, what=str(accepted))


# -- what cannot be judged or read ------------------------------------------------------------------------------------


async def test_a_filter_that_breaks_keeps_nobody_else_waiting(posts: Posts, monkeypatch: pytest.MonkeyPatch):
    from holdfast.monitor import worker

    real = worker.wants

    def wants(subscriber: Subscriber, *rest: Any) -> bool:
        if subscriber.name == "odd":
            raise OverflowError("too large")
        return real(subscriber, *rest)

    monkeypatch.setattr(worker, "wants", wants)
    post = await posts.post()
    heard, odd = post.hears("ear"), post.hears("odd")
    await posts.start(post)
    await post.see(1)
    await until(lambda: states(heard) == [1])
    await until(lambda: states(odd) == [1])  # rather once too often


async def test_a_change_of_a_newer_version_is_counted_and_passed(posts: Posts):
    post = await posts.post()
    heard = post.hears()
    await post.see(1)
    ((number, fields),) = posts.server.xrange(f"{BASE}log")
    posts.server.xadd(f"{BASE}log", {**fields, b"a": b"\x02new"}, id=int(number[:-2]) + 1)
    posts.server.set(f"{BASE}seq", int(number[:-2]) + 1, ex=60)
    await post.see(3)
    await posts.start(post)
    await until(lambda: states(heard) == [1, 3])
    (event,) = post.events_of(Dropped)
    assert (event.reason, event.count) == ("unreadable", 1)


class Away(Broken):
    """A store that keeps no history while it is told to."""

    def subscribers(self, monitor: str) -> Any:
        return self._store.subscribers(monitor)

    def keep(self, *args: Any) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        self._store.keep(*args)


async def test_history_goes_on_when_the_store_comes_back(posts: Posts, store: MonitorStore):
    away = Away(store)
    away.error = RuntimeError("whatever a store raises")
    post = await with_store(posts, away)  # type: ignore[arg-type]
    heard = post.hears()
    await posts.start(post)
    await post.see(1, 2)
    await until(lambda: states(heard) == [1, 2], what="telling, which does not wait for history")
    await until(lambda: away.asked)
    away.error = None
    post.ring()

    async def kept() -> bool:
        return [one.state for one in await post.do("history", "web", "a")] == [2, 1]

    await until(kept)
