"""A monitor with a window: within it a state is told once, and what it is in the end is told after it."""

from __future__ import annotations

from typing import Any

import pytest
from monitor_desk import BASE, Clock, Desk, Desks, Posts, states
from monitor_tell import delivered

from holdfast import QueueFull, Subscriber
from support.conditions import until

ALL = Subscriber("all", "webhook", "https://example.com", first=True)
MINUTE = 60.0
WINDOW = 300.0


class Table:
    """A desk, and a clock in minutes from the first change on."""

    def __init__(self, desk: Desk, clock: Clock) -> None:
        self.desk, self.clock, self._start = desk, clock, clock.ms

    async def at(self, minutes: float, state: Any, key: Any = "a") -> str:
        self.to(minutes)
        return str((await self.desk.observe("web", key, state)).outcome)

    def to(self, minutes: float) -> None:
        self.clock.move((self._start + minutes * 60_000 - self.clock.ms) / 1000)

    async def settles(self, minutes: float) -> tuple[int, float | None]:
        self.to(minutes)
        return await self.desk.settle()  # type: ignore[no-any-return]

    async def told(self) -> list[tuple[str, Any]]:
        return [(change.kind, change.after) for change in await self.desk.read(ALL)]


@pytest.fixture
async def table(quick: Desks) -> Table:
    clock = quick.drive()
    return Table(await quick.desk(window=WINDOW), clock)


async def test_the_table(table: Table):
    """T0 A→B told, T1 B→A told, T2 A→B held back, T5 settled, T6 B→C told."""
    assert await table.at(-1, "A") == "first"
    assert await table.at(0, "B") == "changed"
    assert await table.at(1, "A") == "changed"
    assert await table.at(2, "B") == "repeated"
    assert await table.told() == [("first", "A"), ("changed", "B"), ("changed", "A")]
    # what it is in the end is told when the window of that state is over, once
    assert await table.settles(4.99) == (0, pytest.approx(0.6, abs=0.01))
    assert await table.settles(5) == (1, None)
    assert await table.settles(5.5) == (0, None)
    assert await table.told() == [("settled", "B")]
    assert await table.at(6, "C") == "changed"
    assert await table.told() == [("changed", "C")]


async def test_the_table_without_a_check_just_before(table: Table):
    """The first state of all does not count as told within the window: a return to it is news."""
    assert await table.at(0, "A") == "first"
    assert await table.at(0.1, "B") == "changed"
    assert await table.at(1, "A") == "changed"
    assert await table.at(2, "B") == "repeated"
    assert await table.at(3, "A") == "repeated"
    assert await table.settles(10) == (0, None), "it is as it was told last"


async def test_back_to_what_was_told_last_settles_nothing(table: Table):
    for minute, state, outcome in ((0, "A", "first"), (1, "B", "changed"), (2, "C", "changed"), (3, "B", "repeated"),
                                   (3.5, "C", "repeated")):  # fmt: skip
        assert await table.at(minute, state) == outcome
    await table.told()
    assert await table.settles(20) == (0, None)
    assert await table.told() == []


async def test_what_is_new_is_told_at_once_and_ends_the_wait(table: Table):
    for minute, state in ((0, "A"), (1, "B"), (2, "A"), (3, "B")):
        await table.at(minute, state)
    assert await table.at(4, "new") == "changed"
    await table.told()
    assert await table.settles(20) == (0, None)


async def test_after_the_window_the_same_is_news_again(table: Table):
    for minute, state in ((0, "A"), (1, "B"), (2, "A")):
        await table.at(minute, state)
    assert await table.at(6.5, "B") == "changed"
    assert await table.at(6.6, "A") == "repeated"
    assert (await table.settles(7.1))[0] == 1


async def test_a_settled_state_counts_as_told(table: Table):
    for minute, state in ((0, "A"), (1, "B"), (2, "A"), (3, "B")):
        await table.at(minute, state)
    assert (await table.settles(6))[0] == 1
    assert await table.at(6.5, "A") == "repeated"  # A was told at 2
    assert await table.at(6.8, "B") == "repeated"  # settled at 6
    assert await table.settles(30) == (0, None)


async def test_what_is_older_does_not_count(quick: Desks):
    clock = quick.drive()
    desk = await quick.desk(window=WINDOW)
    now = clock.now
    outcomes = [(await desk.observe("web", "a", state, at)).outcome for state, at in (
        ("A", now), ("B", now + 1), ("A", now + 2), ("B", now + 1.5), ("B", now + 3), ("A", now + 2.5),
    )]  # fmt: skip
    assert outcomes == ["first", "changed", "changed", "older", "repeated", "older"]
    assert await desk.get("web", "a") == "B"


async def test_many_settle_and_each_once(table: Table):
    for state in "ABAB":
        table.clock.move(0.001)
        await table.desk.observe_many([("web", number, state) for number in range(150)])
    assert [len(await table.told()) for _ in range(3)] == [200, 200, 50]  # pages
    counts = [(await table.settles(10))[0] for _ in range(3)]
    assert counts == [100, 50, 0]
    assert await table.told() == [("settled", "B")] * 150


async def test_a_forgotten_thing_does_not_settle(table: Table):
    for minute, state in ((0, "A"), (1, "B"), (2, "A"), (3, "B")):
        await table.at(minute, state)
    await table.desk.forget("web", "a")
    assert await table.settles(10) == (0, None)


async def test_what_is_held_back_needs_no_room_and_settles_when_there_is_some(quick: Desks):
    clock = quick.drive()
    table = Table(await quick.desk(window=WINDOW, backlog=10), clock)
    for minute, state in ((0, "A"), (1, "B"), (2, "A")):
        await table.at(minute, state)
    for number in range(7):
        await table.at(2, "x", key=number)
    await table.desk.peek()
    assert await table.at(3, "B") == "repeated", "the log is full, and this adds nothing"
    with pytest.raises(QueueFull):
        await table.at(3, "C")
    # it is due, and there is no room
    assert await table.settles(6) == (0, 0.0)
    assert len(await table.told()) == 10
    assert (await table.settles(6.1))[0] == 1
    assert await table.told() == [("settled", "B")]


async def test_a_worker_tells_what_has_settled(posts: Posts):
    clock = posts.drive()
    one, two = await posts.post(window=WINDOW), await posts.post(window=WINDOW)
    heard = [post.hears("ear", first=False) for post in (one, two)]
    await posts.start(one, two)

    def all_told() -> list[Any]:
        return states([delivery for found in heard for delivery in found])

    await one.see("A", "B", "A", "B")
    await until(lambda: len(all_told()) == 2)
    await delivered(sum(map(len, heard)), one, two)
    clock.move(WINDOW)
    for post in (one, two):
        post.ring()
    await until(lambda: len(all_told()) == 3)
    assert sorted(all_told()) == ["A", "B", "B"]
    settled = [
        change for found in heard for delivery in found for change in delivery.changes if change.kind == "settled"
    ]
    assert [(change.after, change.before) for change in settled] == [("B", None)]
    assert posts.server.zcard(f"{BASE}wait") == 0
