"""What a monitor costs: round trips, and commands on the server, whatever it knows and whoever subscribes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from monitor_desk import BASE, Desk, Desks, Posts, states

from holdfast import Subscriber
from holdfast.monitor import flows
from support.conditions import until

SENT = ("evalsha", "eval", "ssubscribe", "sunsubscribe", "script|load")
ALL = Subscriber("all", "webhook", "https://example.com", first=True)


def calls(server: redis.Redis) -> dict[str, int]:
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in server.info("commandstats").items()}


async def commands_of(server: redis.Redis, work: Callable[[], Awaitable[Any]]) -> dict[str, int]:
    """Commands that this caused, those inside scripts too."""
    before = calls(server)
    await work()
    after = calls(server)
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0) and name != "info"}


def sent(done: dict[str, int]) -> int:
    return sum(done.get(name, 0) for name in SENT)


def inside(done: dict[str, int]) -> int:
    return sum(number for name, number in done.items() if name not in SENT)


@pytest.fixture
async def desk(hands: Desks) -> Desk:
    """With every script loaded."""
    made = await hands.desk()
    await made.observe("web", "warm", 1)
    await made.read(ALL)
    await made.tell()
    return made


async def test_a_hundred_observations_are_one_round_trip(desk: Desk, hands: Desks):
    server = hands.server
    for state in ("first", "changed", "changed", "other"):
        done = await commands_of(server, lambda s=state: desk.observe_many([("web", n, s) for n in range(100)]))
        assert sent(done) == 1, done
    done = await commands_of(server, lambda: desk.observe_many([("web", n, 1) for n in range(250)]))
    assert sent(done) == 3


async def test_what_has_not_changed_costs_three_commands(desk: Desk, hands: Desks):
    many = [("web", n, {"price": n}) for n in range(100)]
    await desk.observe_many(many)
    done = await commands_of(hands.server, lambda: desk.observe_many(many))
    assert sent(done) == 1
    assert inside(done) <= 3 * 100 + 2, done
    # an older one costs one
    old = [("web", n, {"price": -1}, 1000) for n in range(100)]
    done = await commands_of(hands.server, lambda: desk.observe_many(old))
    assert inside(done) <= 100 + 2, done


async def test_one_change_costs_few_commands(desk: Desk, hands: Desks):
    done = await commands_of(hands.server, lambda: desk.observe_many([("web", n, "new") for n in range(100)]))
    assert inside(done) <= 4 * 100 + 10, done


async def work_of_each(desk: Desk, server: redis.Redis, turn: str) -> dict[str, dict[str, int]]:
    """What the server does for each operation on one new thing."""
    costs: dict[str, dict[str, int]] = {}

    async def measure(name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        answer: list[Any] = []

        async def go() -> None:
            answer.append(await work())

        costs[name] = await commands_of(server, go)
        return answer[0]

    await measure("observe first", lambda: desk.observe("web", turn, 1))
    await measure("observe changed", lambda: desk.observe("web", turn, 2))
    await measure("observe unchanged", lambda: desk.observe("web", turn, 2))
    page = await measure("peek", desk.peek)
    wanted = [(ALL, 0.0, page.changes)]
    await measure("pump", lambda: desk.pump(page, wanted))
    found = await measure("take", desk.take)
    telling = next(one for one in found.tellings if one.subscriber == "all")
    await measure("done", lambda: desk.done(telling))
    await measure("settle", desk.settle)
    await measure("get", lambda: desk.get("web", turn))
    await measure("forget", lambda: desk.forget("web", turn))
    await measure("roll", lambda: desk.flow(flows.roll, ["all"]))
    return costs


async def test_the_work_does_not_grow_with_what_is_known_nor_with_subscribers(desk: Desk, hands: Desks):
    """The same commands with ten things and subscribers and with a thousand."""
    server = hands.server
    counts = []
    for turn, more in (("warm", 10), ("few", 10), ("many", 1000)):
        await desk.observe_many([("web", f"{turn}-{n}", n) for n in range(more)])
        while page := await desk.peek():
            if page.begin == page.end:
                break
            others = [Subscriber(f"{turn}-{n}", "call", f"{turn}-{n}") for n in range(0, more, 10)]
            assert await desk.pump(page, [(one, 0.0, page.changes[:1]) for one in others])
        await desk.enlist(*(Subscriber(f"{turn}-{n}", "call", f"{turn}-{n}") for n in range(more)))
        counts.append(await work_of_each(desk, server, turn))
    _, few, many = counts
    for name, commands in few.items():
        assert sent(commands) == 1, f"{name} takes {sent(commands)} round trips"
        grown = {what: (n, many[name].get(what, 0)) for what, n in commands.items() if many[name].get(what, 0) > n}
        assert not grown, f"{name}: {grown}"
    assert inside(few["observe unchanged"]) <= 5


async def test_a_full_log_costs_a_little_more_and_not_more_with_its_size(hands: Desks):
    server, costs = hands.server, []
    for backlog in (20, 2000):
        server.flushall()
        desk = await hands.desk(backlog=backlog)
        for turn in range(backlog // 20):
            await desk.observe_many([("web", n, turn) for n in range(20)])
            while await desk.read(ALL):
                await desk.tell()
        assert (await desk.status()).changes == backlog
        done = await commands_of(server, lambda d=desk: d.observe("web", 0, "new"))
        costs.append(inside(done))
    assert costs[1] <= costs[0] <= 20


async def test_a_worker_with_nothing_to_do_costs_about_nothing(posts: Posts):
    post = await posts.post()
    heard = post.hears()
    await posts.start(post)
    await post.see(1)
    await until(lambda: states(heard) == [1])
    done = await commands_of(posts.server, lambda: asyncio.sleep(2.0))
    assert sent(done) <= 8, done


async def test_a_change_is_told_in_few_round_trips(posts: Posts):
    """Observe, peek, pump, take, done, and one more look of each loop."""
    post = await posts.post()
    heard = post.hears()
    await posts.start(post)
    await post.see("warm")
    await until(lambda: states(heard) == ["warm"])
    await asyncio.sleep(0.05)  # whatever else was under way

    async def told() -> None:
        for number in range(20):
            await post.see(number)
            await until(lambda n=number: states(heard)[-1] == n)

    done = await commands_of(posts.server, told)
    assert sent(done) <= 20 * 9, done


async def test_a_thing_takes_little_memory_and_gives_it_back(hands: Desks):
    desk = await hands.desk(keep=1.0)
    server = hands.server
    await desk.observe("web", "warm", {"price": 1})
    before = server.info("memory")["used_memory"]
    await desk.observe_many([("web", n, {"price": n, "name": "x" * 20}) for n in range(1000)])
    each = (server.info("memory")["used_memory"] - before) / 1000
    assert each < 900, f"{each} bytes for each thing and its change"
    await until(lambda: not list(server.scan_iter(match=f"{BASE}s:*", count=1000)), within=5)
