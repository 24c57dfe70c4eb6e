"""Ids that count once, on every kind of server, on asyncio and on threads."""

from __future__ import annotations

import asyncio
import time

from once_desk import SHORT, Desks

from holdfast.events import Filtered
from support.conditions import until

ODD = [
    "a\nb", "{x}", "*", "a:b", "\x00", "a\x00", "\ud800", "e\u0301", "\u00e9", b"\xff\xfe", "%2a", "{once.7}", " ",
    "  ", "0", 0, -1, 1, "1", 2**80, (1,), ("1",), (None,), ((),), ("a", "b"), ("ab",), ("a", ("b",)),
    (("a", "b"),), ("19:00", "a"), ("19", "00:a"), "19:00:a", ("19:00:a",), "x" * 60_000,
]  # fmt: skip


async def test_the_first_is_told_yes_and_every_other_no(desks: Desks):
    one, two = await desks.two()
    assert await one.once("orders", "a") is True
    assert await one.once("orders", "a") is False
    assert await two.once("orders", "a") is False
    assert await two.once("orders", "b") is True
    assert await two.once("others", "a") is True


async def test_an_id_is_new_again_when_its_window_is_over_and_not_before(desks: Desks):
    desk = await desks.desk()
    # Given an id that was seen, and asked about again: that does not prolong its window
    before = time.monotonic()
    assert await desk.once("orders", "a", 0.3)
    marked = time.monotonic()

    async def new() -> bool:
        return await desk.once("orders", "a", 60)

    # when it is asked about until it is new, expect that to be when the window is over
    await until(new, what="the end of the window")
    ended = time.monotonic()
    assert ended - before >= 0.3
    assert ended - marked < 2
    # and the window to be that of the one who was told yes
    assert max(desks.lives().values()) > 50_000


async def test_the_window_comes_from_the_settings(quick: Desks):
    desk = await quick.desk(within=77.0)
    await desk.once("orders", "a")
    assert 70_000 < max(quick.lives().values()) <= 77_000


async def test_new_ones_come_in_order_and_twins_count_once(desks: Desks):
    desk, other = await desks.two()
    assert await other.filter_new("orders", ["c", "f"]) == ["c", "f"]
    assert await desk.filter_new("orders", list("fedcbaabcdef")) == ["e", "d", "b", "a"]
    assert await desk.filter_new("orders", list("abcdefg")) == ["g"]
    assert await desk.filter_new("orders", []) == []
    assert await desk.filter_new("orders", (letter for letter in "gh")) == ["h"]
    # what comes back are the ids as they were passed
    assert await desk.filter_new("orders", [b"x", "x", ("y", 1), ("y", 1), ("y", "1")]) == [b"x", ("y", 1), ("y", "1")]


async def test_ten_thousand_in_one_call(tasks: Desks):
    desk = await tasks.desk()
    ids = [("order", number) for number in range(10_000)]
    known = await desk.filter_new("orders", ids[::7])
    assert known == ids[::7]
    new = await desk.filter_new("orders", ids)
    assert new == [one for at, one in enumerate(ids) if at % 7]
    assert await desk.filter_new("orders", ids[:3000]) == []
    assert await desk.forget("orders", *ids[:5000]) == 5000


async def test_no_two_ids_are_alike(desks: Desks):
    desk = await desks.desk()
    assert await desk.filter_new("odd", ODD) == ODD
    assert await desk.filter_new("odd", ODD) == []
    for one in ODD:
        assert not await desk.once("odd", one), repr(one)[:50]


async def test_text_and_the_bytes_of_its_utf8_are_one_id(desks: Desks):
    desk = await desks.desk()
    assert await desk.filter_new("s", ["\u00e9", "\u00e9".encode(), ("\u00e9",), ("\u00e9".encode(),)]) == [
        "\u00e9",
        ("\u00e9",),
    ]


async def test_no_two_spaces_are_alike(quick: Desks):
    desk = await quick.desk()
    spaces = [
        "a", "a:b", "a:b:c", "a b", "{x}", "{x}x", "{once.1}", "\x00", "\ud800", "e\u0301", "\u00e9", "%", "%25",
    ]  # fmt: skip
    for space in spaces:
        assert await desk.once(space, "id"), space
    for space in spaces:
        assert not await desk.once(space, "id"), space
    assert all(key.count("{") == key.count("}") == 1 for key in quick.lives())


async def test_what_is_forgotten_is_new_again(desks: Desks):
    desk, other = await desks.two()
    ids = list("abcde")
    await desk.filter_new("orders", ids)
    assert await other.forget("orders", "a", "b", "b", "x") == 2
    assert await other.forget("orders") == 0
    assert await desk.filter_new("orders", ids) == ["a", "b"]
    # also what somebody works on
    assert (await desk.begin("orders", "mine")).state == "mine"
    assert await other.forget("orders", "mine") == 1
    assert await other.state("orders", "mine") == "mine"


async def test_one_of_many_at_once_is_told_yes(desks: Desks):
    crew = [await desks.desk() for _ in range(4)]
    ids = [f"id-{number}" for number in range(20)]
    answers = await asyncio.gather(*(desk.filter_new("orders", ids) for desk in crew for _ in range(3)))
    assert sorted(one for answer in answers for one in answer) == sorted(ids)
    told = await asyncio.gather(*(desk.once("orders", f"x{number}") for number in range(10) for desk in crew))
    assert sum(told) == 10


async def test_one_that_does_not_come_in_time_is_not_lost(desks: Desks):
    """`once` marks at once, also where the caller then dies; that it is not for ever is what the window is for."""
    desk, other = await desks.two()
    await desk.once("orders", "a", SHORT)
    await desks.close_client(desk.hf)

    async def new() -> bool:
        return await other.once("orders", "a")

    await until(new)


async def test_what_was_asked_is_counted(quick: Desks):
    events: list[object] = []
    desk = await quick.desk(observers=[events.append])
    await desk.filter_new("orders", ["a", "b", "a"])
    await desk.once("orders", "a")
    assert [event for event in events if isinstance(event, Filtered)] == [
        Filtered("orders", 2, 1),
        Filtered("orders", 0, 1),
    ]
