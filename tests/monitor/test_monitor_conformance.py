"""What a monitor promises to whoever observes: on four kinds of server, on both twins."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from monitor_desk import Desks, Posts, states

from holdfast import ConfigurationError, Observation, Observed, QueueFull, Subscriber
from holdfast.monitor.flows import AT_ONCE
from support.conditions import until

ALL = Subscriber("all", "webhook", "https://example.com", first=True)


# -- one thing --------------------------------------------------------------------------------------------------------


async def test_first_changed_unchanged_and_older(desks: Desks):
    # Given nothing, when a thing is observed
    desk = await desks.desk()
    one = await desk.observe("web", "a", {"price": 80}, observed_at=1000)
    assert (one.outcome, one.before, one.changed) == ("first", None, True)
    # then its next state is a change, with what was before
    two = await desk.observe("web", "a", {"price": 90}, observed_at=1060)
    assert (two.outcome, two.before, two.changed) == ("changed", {"price": 80}, True)
    assert two.change > one.change
    # and the same, something older, and something else of the same time are none
    quiet = [("web", "a", {"price": 90}, 1070), ("web", "a", {"price": 70}, 1065), ("web", "a", {"price": 70}, 1070)]
    assert await desk.observe_many(quiet) == [
        Observed("unchanged", None), Observed("older", None), Observed("older", None),
    ]  # fmt: skip
    assert await desk.get("web", "a") == {"price": 90}
    # and what is known is of the last time that it was seen
    assert await desk.outcomes(("web", "a", {"price": 100}, 1071)) == ["changed"]


async def test_a_copy_that_comes_again_changes_nothing(desks: Desks):
    desk = await desks.desk()
    seen = [("web", "a", number, 1000 + number) for number in range(4)]
    assert await desk.outcomes(*seen) == ["first", "changed", "changed", "changed"]
    assert await desk.outcomes(*seen) == ["older", "older", "older", "unchanged"]
    assert await desk.get("web", "a") == 3


async def test_without_a_time_the_order_of_arrival_counts(desks: Desks):
    one, two = await desks.desk(), await desks.desk()
    for number in range(5):
        seen = await (one, two)[number % 2].observe("web", "a", number)
        assert seen.outcome == ("changed" if number else "first")


async def test_a_datetime_is_a_time(desks: Desks):
    desk = await desks.desk()
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert await desk.outcomes(("web", "a", 1, at), ("web", "a", 2, at.timestamp() - 1)) == ["first", "older"]
    assert await desk.outcomes(("web", "a", 2, at.timestamp() + 1)) == ["changed"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1, "b": [1.0, 2]}, {"b": [1, 2.0], "a": 1.0}),
        ({"a": {"x": None, "y": "é"}}, {"a": {"y": "é", "x": None}}),
        ([1, 2], (1, 2)),
        (b"\x00\xff", bytearray(b"\x00\xff")),
        (10**30, 10**30),
    ],
)
async def test_what_is_equal_is_unchanged(hands: Desks, before: Any, after: Any):
    desk = await hands.desk()
    assert await desk.outcomes(("web", "a", before), ("web", "a", after)) == ["first", "unchanged"]


@pytest.mark.parametrize(
    ("before", "after"),
    [(1, True), (0, None), ("1", 1), ([1, 2], [2, 1]), ({}, []), ({"a": None}, {}), ("é", "e\u0301"), (b"a", "a"),
     ({"$bytes": "61"}, b"a")],
)  # fmt: skip
async def test_what_differs_is_a_change(hands: Desks, before: Any, after: Any):
    desk = await hands.desk()
    assert await desk.outcomes(("web", "a", before), ("web", "a", after)) == ["first", "changed"]


async def test_sources_and_parts_of_keys_are_never_joined(desks: Desks):
    desk = await desks.desk()
    keys = ["19:00", ("19", "00"), ("19:00",), 19, "19", ("19", 0), ("1", "9", "00"), "é", "e\u0301", "{x}:*"]
    many = [(source, key, 1) for source in ("web", "we", "b") for key in keys]
    assert await desk.outcomes(*many) == ["first"] * len(many)
    assert await desk.outcomes(*many) == ["unchanged"] * len(many)


async def test_only_the_fields_count(desks: Desks):
    desk = await desks.desk(fields=["price", "free"], ignore=["free"])
    assert await desk.outcomes(
        ("web", "a", {"price": 1, "free": 1, "html": "x"}), ("web", "a", {"price": 1.0, "free": 2, "html": "y"}),
        ("web", "a", {"price": 2}), ("web", "a", {"free": 3}),
    ) == ["first", "unchanged", "changed", "changed"]  # fmt: skip
    assert await desk.get("web", "a") == {}


async def test_what_is_ignored_does_not_count(desks: Desks):
    desk = await desks.desk(ignore=["seen_at"])
    assert await desk.outcomes(
        ("web", "a", {"price": 1, "seen_at": 1}), ("web", "a", {"price": 1, "seen_at": 2}),
    ) == ["first", "unchanged"]  # fmt: skip
    assert await desk.get("web", "a") == {"price": 1}


async def test_what_is_forgotten_is_first_again(desks: Desks):
    desk = await desks.desk()
    await desk.observe("web", "a", 1, observed_at=1000)
    assert await desk.forget("web", "a")
    assert not await desk.forget("web", "a")
    assert await desk.get("web", "a") is None
    assert await desk.outcomes(("web", "a", 1, 900)) == ["first"]


# -- many -------------------------------------------------------------------------------------------------------------


async def test_many_with_the_same_thing_several_times_are_judged_in_order(desks: Desks):
    # Given more than go at once, with one thing again and again between the others
    desk = await desks.desk()
    many: list[Any] = []
    for number in range(AT_ONCE + 30):
        many.append(Observation("web", number, number))
        if number % 40 == 0:
            many.append(("web", "again", number))
    # when they are observed
    seen = await desk.observe_many(many)
    # expect each judged in its order
    assert len(seen) == len(many)
    again = [answer for one, answer in zip(many, seen, strict=True) if one[1] == "again"]
    assert [(one.outcome, one.before) for one in again] == [
        ("first", None), ("changed", 0), ("changed", 40), ("changed", 80),
    ]  # fmt: skip
    assert [answer.outcome for one, answer in zip(many, seen, strict=True) if one[1] != "again"] == ["first"] * 130
    ids = [answer.change for answer in seen]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids), "two changes have one id"
    # and the log to have all of them in that order
    told = await desk.read(ALL)
    assert [change.id for change in told] == ids
    assert await desk.observe_many([]) == []


async def test_changes_say_everything(desks: Desks):
    desk = await desks.desk()
    await desk.observe("web", ("19:00", 3), {"price": 80}, observed_at=1000.25)
    await desk.observe("web", ("19:00", 3), {"price": 90, "free": b"\x00"}, observed_at=1060.5)
    first, changed = await desk.read(ALL)
    assert (first.kind, first.before, first.after, first.fields) == ("first", None, {"price": 80}, ())
    assert (changed.kind, changed.before, changed.after) == ("changed", {"price": 80}, {"price": 90, "free": b"\x00"})
    assert (changed.source, changed.key, changed.observed_at) == ("web", ("19:00", 3), 1060.5)
    assert set(changed.fields) == {"price", "free"}
    assert changed.monitor == "venues"
    assert first.at < changed.at
    assert abs(int(changed.id) / 1e6 - changed.at) < 1e-5


async def test_what_many_processes_see_at_once_is_found_once(desks: Desks):
    # Given four observers of the same twenty states of one thing, each in another order
    crew = [await desks.desk() for _ in range(4)]
    times = [list(range(20)), list(range(19, -1, -1)), [n * 7 % 20 for n in range(20)], [n * 3 % 20 for n in range(20)]]

    async def observe(number: int) -> list[Observed]:
        return [await crew[number].observe("web", "a", n, observed_at=1000 + n) for n in times[number]]

    seen = [one for found in await asyncio.gather(*map(observe, range(4))) for one in found]
    # expect the changes to follow the times, each once
    told = await crew[0].read(ALL)
    assert [change.after for change in told] == sorted({change.after for change in told})
    assert [change.before for change in told[1:]] == [change.after for change in told[:-1]]
    assert told[-1].after == 19
    assert sorted(one.change for one in seen if one.change) == [change.id for change in told]


# -- raw results ------------------------------------------------------------------------------------------------------


async def test_a_task_is_processed_once_in_the_fleet(desks: Desks):
    one, two = await desks.desk(), await desks.desk()
    parsed: list[Any] = []

    def parse(raw: Any) -> Any:
        parsed.append(raw)
        for row in raw:
            yield row, {"price": raw[row]}, 1000

    for desk in (one, two):
        desk.monitor.parser("web")(parse)
    seen = await one.process("web", "task-1", {"a": 1, "b": 2})
    assert [answer.outcome for answer in seen] == ["first", "first"]
    assert await two.process("web", "task-1", {"a": 1, "b": 2}) is None
    assert len(parsed) == 1
    # Another task of another raw result, and ids with parts, are their own
    assert [answer.outcome for answer in await two.process("web", ("task", 1), {"a": 3})] == ["older"]
    assert await one.get("web", "a") == {"price": 1}


async def test_what_a_parser_could_not_do_the_next_one_does(desks: Desks):
    # Given a parser that fails in its middle
    one, two = await desks.desk(), await desks.desk()

    def broken(raw: Any) -> Any:
        yield "a", 1
        raise ValueError("half")

    one.monitor.parser("web")(broken)
    two.monitor.parser("web")(lambda raw: [("a", raw)])
    with pytest.raises(ValueError, match="half"):
        await one.process("web", "task", 1)
    # expect that nothing was observed, and that the next one does it
    assert await two.get("web", "a") is None
    assert [answer.outcome for answer in await two.process("web", "task", 1)] == ["first"]
    assert await one.process("web", "task", 1) is None


async def test_a_task_whose_results_found_no_room_is_done_by_the_next_one(quick: Desks):
    desk = await quick.desk(backlog=10)
    await desk.peek()
    desk.monitor.parser("web")(lambda raw: [(n, raw) for n in range(12)])
    with pytest.raises(QueueFull):
        await desk.process("web", "task", 1)
    assert len(await desk.read(ALL)) == 10
    seen = await desk.process("web", "task", 1)
    assert [answer.outcome for answer in seen] == ["unchanged"] * 10 + ["first"] * 2


async def test_a_parser_may_be_a_coroutine_function(hands: Desks):
    desk = await hands.desk()

    @desk.monitor.parser("web")
    async def parse(raw: Any) -> Any:
        await asyncio.sleep(0)
        return [("a", raw)]

    assert [answer.outcome for answer in await desk.process("web", "task", 1)] == ["first"]
    with pytest.raises(ConfigurationError, match="register one parser"):
        desk.monitor.parser("web")(parse)
    with pytest.raises(ConfigurationError, match="register a parser first"):
        await desk.process("other", "task", 1)


# -- a full log -------------------------------------------------------------------------------------------------------


async def test_a_log_that_nobody_reads_is_full_and_nothing_is_stored(desks: Desks):
    # Given a log with room for ten, and a reader that has read the first two
    desk = await desks.desk(backlog=10)
    await desk.observe_many([("web", number, "old", 1000) for number in range(10)])
    assert len(await desk.read(ALL, count=2)) == 2
    # when more changes come: those that were read make room for two
    with pytest.raises(QueueFull, match="run workers for this monitor, or raise its backlog") as full:
        await desk.observe_many([("web", number, "new", 2000) for number in range(4)])
    seen = full.value.observed
    assert [one.outcome for one in seen] == ["changed", "changed", "full", "full"]
    # expect that what found no room is not known
    assert [await desk.get("web", number) for number in range(4)] == ["new", "new", "old", "old"]
    assert (await desk.status()).changes == 10
    # and what changes nothing goes on
    assert await desk.outcomes(("web", 0, "new", 2001), ("web", 1, "old", 1500)) == ["unchanged", "older"]
    # when somebody reads
    assert len(await desk.read(ALL)) == 10
    # expect that it goes on, and that no change was lost or told twice
    assert await desk.outcomes(("web", 2, "new", 2000), ("web", 3, "new", 2000)) == ["changed", "changed"]
    assert [change.key for change in await desk.read(ALL)] == [2, 3]


async def test_what_came_before_the_first_reader_is_told_too(desks: Desks):
    desk = await desks.desk(backlog=10)
    with pytest.raises(QueueFull):
        await desk.observe_many([("web", "a", number) for number in range(12)])
    assert [change.after for change in await desk.read(ALL)] == list(range(10))


# -- telling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", ["async", "sync"])
async def test_every_change_is_told_once_and_in_order(everywhere: Posts, twin: str):
    # Given two workers that share the work, and two functions
    one, two = await everywhere.post(twin), await everywhere.post(twin)
    heard = [post.hears(name, max_changes=3) for name in ("x", "y") for post in (one, two)]
    await everywhere.start(one, two)
    # when a thing changes again and again
    for number in range(10):
        await (one, two)[number % 2].see(number)
    # expect each to hear all of it, in order and once
    await until(lambda: sum(map(len, map(states, heard[:2]))) == sum(map(len, map(states, heard[2:]))) == 10)
    for lists in (heard[:2], heard[2:]):
        told = sorted((delivery for found in lists for delivery in found), key=lambda one: one.changes[0].id)
        assert states(told) == list(range(10))
        assert len({delivery.id for delivery in told}) == len(told)
        assert all(delivery.attempt == 1 and len(delivery.changes) <= 3 for delivery in told)
    for post in (one, two):
        await post.stop()
