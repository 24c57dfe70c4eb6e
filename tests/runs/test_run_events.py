"""Events of a run: in order, once, to the end; for readers that come early, late, again, or in numbers."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from run_rooms import Room, Rooms, data_of, kinds_of

from holdfast import Event, RunGone, TooLarge
from holdfast.events import Dropped
from holdfast.runs import feed
from support.conditions import until


def ids(events: list[Event]) -> list[tuple[int, ...]]:
    return [tuple(map(int, event.id.split("-"))) for event in events]


async def reading(room: Room, run_id: str, readers: int = 1) -> None:
    """They have asked for all there was, and wait."""
    core = room.actor.hf._core
    channel = room.runs._spec.place(run_id).channel

    def waits() -> bool:
        found = core.feeds.get(channel)
        return found is not None and len(found.readers) == readers and found._last is not None and not found.asking

    await until(waits, what=f"{readers} readers that wait")


# -- order ----------------------------------------------------------------------------------------------------------


async def test_events_come_in_the_order_in_which_they_were_emitted(rooms: Rooms):
    room, other = await rooms.two()
    values = [1, "zwei", b"\x00\xff", None, [], {"a": {"b": [1.5, True]}}, "☃", 2**70]

    run = await room.claim("r")
    for value in values:
        await room.on(run, "emit", value)
    await room.on(run, "flush")
    assert (await other.get("r")).events == len(values)
    await room.end(run)
    events = await other.events("r")
    assert data_of(events) == values
    assert kinds_of(events) == ["data"] * len(values) + ["end"]
    assert ids(events) == sorted(set(ids(events)))
    assert all(abs(event.at - ids([event])[0][0] / 1000) < 0.001 for event in events)
    assert (await other.get("r")).last_event == events[-1].id


async def test_a_reader_that_waits_gets_each_event_as_it_comes(rooms: Rooms):
    room, other = await rooms.two()
    await room.start("r")
    reader = other.actor.start(lambda _: other.read("r"))
    await reading(other, "r")
    run = await room.claim("r")
    for number in range(5):
        await room.emit(run, number)
    await room.end(run)
    events = await asyncio.wait_for(reader, 5)
    assert data_of(events) == list(range(5))
    assert (kinds_of(events)[-1], events[-1].data["state"]) == ("end", "completed")


async def test_the_same_comes_before_during_and_after_the_run(quick: Rooms):
    room = await quick.room()
    early, during = await quick.two()
    await room.start("r")
    first = early.actor.start(lambda _: early.read("r"))
    run = await room.claim("r")
    await room.emit(run, 1, 2)
    second = during.actor.start(lambda _: during.read("r"))
    await room.emit(run, 3)
    await room.end(run)
    third = await room.events("r")
    assert await first == await second == third
    assert data_of(third) == [1, 2, 3]


async def test_many_events_come_in_order_in_few_requests(quick: Rooms):
    room, other = await quick.two()
    run = await room.claim("r")
    before = quick.scripts_run()
    for number in range(3000):
        await room.on(run, "emit", number)
    await room.end(run)
    assert quick.scripts_run() - before < 300
    before = quick.scripts_run()
    assert data_of(await other.events("r")) == list(range(3000))
    assert quick.scripts_run() - before < 300


async def test_a_flush_waits_until_all_is_stored(quick: Rooms):
    room, other = await quick.two(emit_delay=60.0)
    run = await room.claim("r")
    await room.emit(run, 0)
    for number in range(1, 5):
        await room.on(run, "emit", number)
    assert (await other.get("r")).events == 1
    await room.on(run, "flush")
    assert (await other.get("r")).events == 5
    await room.on(run, "flush")
    # and the end takes along what was not
    await room.on(run, "emit", 5)
    await room.end(run)
    assert data_of(await other.events("r")) == list(range(6))


async def test_what_is_emitted_is_sent_without_a_flush(quick: Rooms):
    room, other = await quick.two(emit_delay=0.02)
    run = await room.claim("r")
    for number in range(10):
        await room.on(run, "emit", number)

    async def stored() -> bool:
        return (await other.get("r")).events == 10

    await until(stored, within=2, what="all events")
    del run


# -- again ----------------------------------------------------------------------------------------------------------


async def test_a_reader_that_comes_back_gets_exactly_the_rest(rooms: Rooms):
    # Given a run with batches of several events and a takeover
    room, other = await rooms.two(emit_delay=5.0)
    old = await room.dead("r", emits=[0, 1, 2, 3], saves="x")
    del old
    new = await other.claim_when_free("r")
    for number in range(4, 9):
        await other.on(new, "emit", number)
    await other.end(new)
    events = await other.events("r")
    assert kinds_of(events).count("resumed") == 1
    # when a reader comes back after any of them, expect what came after it and nothing else
    for number, event in enumerate(events):
        assert await room.events("r", event.id) == events[number + 1 :]
    assert await room.events("r", "0-0") == events
    assert await room.events("r", None) == events


async def test_a_reader_that_comes_back_while_the_run_goes_on_misses_nothing(quick: Rooms):
    room, other = await quick.two(emit_delay=0.0)
    run = await room.claim("r")
    seen: list[Event] = []
    for number in range(20):
        await room.on(run, "emit", number)
        after = seen[-1].id if seen else None
        seen += await other.actor.do(lambda _, after=after: other.read("r", after, most=1, timeout=5))
    await room.end(run)
    seen += await other.events("r", seen[-1].id)
    assert data_of(seen) == list(range(20))


async def test_a_reader_after_the_end_gets_nothing_and_ends(rooms: Rooms):
    room, other = await rooms.two()
    await room.body("r")
    end = (await room.events("r"))[-1]
    assert await asyncio.wait_for(other.events("r", end.id), 2) == []
    later = f"{int(end.id.split('-')[0]) + 10_000}-0"
    assert await asyncio.wait_for(other.events("r", later), 2) == []


# -- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["completed", "failed", "stopped", "stopped in the queue", "lost"])
async def test_the_end_is_always_last_and_says_how(rooms: Rooms, how: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "CHECK", 0.3)
    room, other = await rooms.two(max_attempts=1)
    await room.start("r")
    reader = other.actor.start(lambda _: other.read("r"))
    await reading(other, "r")
    if how == "stopped in the queue":
        await room.stop("r", "why")
    elif how == "lost":
        await room.dead("r")
    else:
        run = await room.claim("r")
        run.result = 5
        if how == "stopped":
            await room.stop("r", "why")
        await (room.end(run, ValueError("x")) if how == "failed" else room.end_stopped(run))
    events = await asyncio.wait_for(reader, 5)
    assert kinds_of(events) == ["end"]
    state, reason = {"failed": ("failed", "ValueError: x"), "completed": ("completed", ""),
                     "lost": ("failed", "worker lost")}.get(how, ("stopped", "why"))  # fmt: skip
    assert (events[0].data["state"], events[0].data["reason"]) == (state, reason)
    assert await room.events("r") == events


async def test_ending_the_iteration_does_not_stop_the_run(quick: Rooms):
    room, other = await quick.two()
    run = await room.claim("r")
    await room.emit(run, 1)
    assert data_of(await other.actor.do(lambda _: other.read("r", most=1))) == [1]
    assert (await other.get("r")).state == "running"
    core = other.actor.hf._core
    assert not core.feeds
    assert not core.mailbox.feeds


async def test_a_run_that_is_not_there_is_gone(rooms: Rooms):
    room = await rooms.room()
    for name, args in (("events", ("none",)), ("get", ("none",)), ("wait", ("none",)), ("stop", ("none",))):
        assert str(await room.refuses(RunGone, name, *args)).startswith("check the id: there is no such run")


# -- quiet ----------------------------------------------------------------------------------------------------------


async def test_nothing_for_too_long_is_a_time_out(quick: Rooms):
    room = await quick.room()
    run = await room.claim("r")
    await room.emit(run, 1)
    with pytest.raises(TimeoutError):
        await room.events("r", timeout=0.1)
    assert not room.actor.hf._core.feeds


async def test_events_put_the_time_out_off(quick: Rooms):
    room, other = await quick.two()
    run = await room.claim("r")
    reader = other.actor.start(lambda _: other.read("r", timeout=0.6))
    await reading(other, "r")
    for number in range(4):
        await room.emit(run, number)
        await asyncio.sleep(0.25)
    await room.end(run)
    assert data_of(await reader) == [0, 1, 2, 3]


async def test_quiet_times_have_signs_of_life(quick: Rooms):
    room, other = await quick.two()
    run = await room.claim("r")
    await room.emit(run, 1)
    events = await other.actor.do(lambda _: other.read("r", most=4, keep_alive=0.05))
    assert kinds_of(events) == ["data", "alive", "alive", "alive"]
    assert {event.id for event in events} == {events[0].id}
    await room.end(run)
    assert kinds_of(await other.events("r", events[-1].id)) == ["end"]


# -- bounds ---------------------------------------------------------------------------------------------------------


async def test_the_oldest_events_are_dropped_and_that_is_said(rooms: Rooms):
    told: list = []
    room = await rooms.room(settings={"observers": [told.append]}, max_events=16)
    other = await rooms.room(max_events=16)
    run = await room.claim("r")
    for number in range(50):
        await room.emit(run, number)
        assert (await other.get("r")).events <= 16
    kept = await other.get("r")
    assert kept.events + kept.dropped == 50
    assert sum(event.count for event in told if isinstance(event, Dropped)) == kept.dropped
    await room.end(run)
    events = await other.events("r")
    assert kinds_of(events)[0] == "dropped"
    assert events[0].data == {"count": kept.dropped}
    assert data_of(events) == list(range(50 - kept.events, 50))
    # and who has seen what is left gets no such event
    assert kinds_of(await other.events("r", events[1].id)) == ["data"] * (kept.events - 1) + ["end"]
    assert await other.events("r", events[0].id) == events[1:]


async def test_a_fast_emitter_keeps_within_the_bounds_too(rooms: Rooms):
    room, other = await rooms.two(max_events=10)
    run = await room.claim("r")
    for number in range(100):
        await room.on(run, "emit", number)
    await room.end(run)
    kept = await other.get("r")
    assert 0 < kept.events <= 10
    assert kept.events + kept.dropped == 100
    assert data_of(await other.events("r")) == list(range(100 - kept.events, 100))


async def test_bytes_are_bounded_as_well(rooms: Rooms):
    room, other = await rooms.two(max_event_bytes=4096)
    run = await room.claim("r")
    for number in range(40):
        await room.emit(run, {"n": number, "x": "x" * 300})
    kept = await other.get("r")
    assert 0 < kept.events * 300 <= 4096
    assert kept.events + kept.dropped == 40
    with pytest.raises(TooLarge):
        await room.on(run, "emit", "x" * 4096)
    await room.end(run)
    events = await other.events("r")
    assert (events[0].kind, events[0].data) == ("dropped", {"count": kept.dropped})


async def test_every_reader_is_told_what_was_dropped(quick: Rooms):
    room = await quick.room(max_events=8)
    other = await quick.room(max_events=8)
    run = await room.claim("r")
    await room.emit(run, *range(30))
    second = Room(await quick.actor(other.actor.hf), max_events=8)
    both = [one.actor.start(lambda _, one=one: one.read("r")) for one in (other, second)]
    await reading(other, "r", 2)
    await room.end(run)
    first, other_one = await asyncio.gather(*both)
    assert first[0].kind == other_one[0].kind == "dropped"
    assert first == other_one


# -- in numbers -----------------------------------------------------------------------------------------------------


async def test_readers_of_one_process_share_what_comes(quick: Rooms):
    room = await quick.room()
    first = await quick.room()
    readers = [first] + [Room(await quick.actor(first.actor.hf)) for _ in range(9)]
    run = await room.claim("r")
    await room.emit(run, 0)
    all_of_them = [one.actor.start(lambda _, one=one: one.read("r")) for one in readers]
    await reading(first, "r", 10)
    before = quick.scripts_run()
    await room.emit(run, *range(1, 6))
    asked = quick.scripts_run() - before
    await room.end(run)
    seen = await asyncio.gather(*all_of_them)
    assert [data_of(one) for one in seen] == [list(range(6))] * 10
    assert asked < 5 + 5, "each reader asks the server for what was pushed to all of them"
    assert not first.actor.hf._core.feeds


async def test_readers_at_different_places_get_what_is_theirs(quick: Rooms):
    room = await quick.room()
    first = await quick.room()
    run = await room.claim("r")
    await room.emit(run, *range(6))
    stored = await room.actor.do(lambda _: room.read("r", most=6))
    readers = [Room(await quick.actor(first.actor.hf)) for _ in stored]
    each = [
        one.actor.start(lambda _, one=one, event=event: one.read("r", event.id))
        for one, event in zip(readers, stored, strict=True)
    ]
    await reading(first, "r", 6)
    await room.emit(run, 6)
    await room.end(run)
    for number, events in enumerate(await asyncio.gather(*each)):
        assert data_of(events) == list(range(number + 1, 7))


async def test_a_reader_that_falls_behind_the_window_asks(quick: Rooms, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "WINDOW", 5)
    monkeypatch.setattr(feed, "PAGE", 2)
    room, other = await quick.two()
    run = await room.claim("r")
    fast = other.actor.start(lambda _: other.read("r"))
    await reading(other, "r")
    await room.emit(run, *range(30))
    slow = Room(await quick.actor(other.actor.hf))
    late = slow.actor.start(lambda _: slow.read("r"))
    await reading(other, "r", 2)
    await room.emit(run, *range(30, 60))
    await room.end(run)
    assert data_of(await fast) == data_of(await late) == list(range(60))


async def test_ids_grow_over_attempts(quick: Rooms):
    room = await quick.room(max_attempts=9)
    for attempt in range(3):
        await room.dead("r", emits=[attempt])
        await room.becomes("r", "queued")
    run = await room.claim("r")
    await room.end(run)
    events = await room.events("r")
    assert kinds_of(events) == ["data", "resumed", "data", "resumed", "data", "resumed", "end"]
    assert all(one < two for one, two in itertools.pairwise(ids(events)))
    assert [e.data["attempt"] for e in events if e.kind == "resumed"] == [2, 3, 4]
