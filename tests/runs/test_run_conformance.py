"""What a collection of runs promises, on every kind of server, on asyncio and on threads: starting, conflicts, queues.

Owners are in test_run_claims.py, events in test_run_events.py, stopping and looking in test_run_looking.py, ids and bad
arguments in test_run_arguments.py."""

from __future__ import annotations

import asyncio

import pytest
from run_rooms import Room, Rooms

from holdfast import Holdfast, QueueFull, RunActive, RunEnded, RunMismatch
from holdfast.events import RunQueued

# -- the same again -------------------------------------------------------------------------------------------------


async def test_a_started_run_is_queued_with_all_that_it_was_given(rooms: Rooms):
    room = await rooms.room(kind="workflow")
    run = await room.start("r", {"ask": "why"}, key="k")
    assert (run.id, run.state, run.key, run.kind, run.input) == ("r", "queued", "k", "workflow", {"ask": "why"})
    assert (run.owner, run.attempt, run.fence, run.waits, run.over) == ("", 0, 0, False, False)
    assert (run.started, run.ended, run.progress, run.heartbeat, run.result) == (None, None, None, None, None)
    assert (run.reason, run.stop_reason, run.events, run.dropped) == ("", "", 0, 0)
    assert run.created > 1_600_000_000
    assert await room.get("r") == run


@pytest.mark.parametrize("state", ["queued", "running", "stopping", "completed", "failed", "stopped"])
async def test_the_same_id_again_is_the_same_run_whatever_its_state(quick: Rooms, state: str):
    # Given a run in this state
    room, other = await quick.two()
    await room.start("r", [1], key="k")
    claimed = None if state in ("queued", "stopped") else await room.claim("r")
    if state in ("stopping", "stopped"):
        await room.stop("r")
    if state == "completed":
        await room.end(claimed)
    if state == "failed":
        await room.end(claimed, ValueError("x"))
    # when it is started again, with each policy, expect the run as it is, and nothing new
    for conflict in ("reject", "queue", "replace", "join"):
        again = await other.start("r", [1], key="k", conflict=conflict)
        assert (again.id, again.state, again.input) == ("r", state, [1])
    assert sum((await room.totals()).values()) == 1


async def test_the_same_id_with_something_else_is_refused(rooms: Rooms):
    room = await rooms.room()
    await room.start("r", {"a": 1}, key="k")
    same_but_kind = Room(room.actor, kind="workflow")
    for other, args, options in (
        (room, ("r", {"a": 2}), {"key": "k"}),
        (room, ("r", {"a": 1}), {"key": "l"}),
        (room, ("r", {"a": 1}), {}),
        (room, ("r", None), {"key": "k"}),
        (same_but_kind, ("r", {"a": 1}), {"key": "k"}),
    ):
        error = await other.refuses(RunMismatch, "start", *args, conflict="replace", **options)
        assert str(error).startswith("use another run id")
        assert (error.run.id, error.run.state, error.run.input) == ("r", "queued", {"a": 1})
    assert (await room.totals())["queued"] == 1


async def test_two_collections_have_nothing_to_do_with_each_other(rooms: Rooms):
    one = await rooms.room("one")
    two = Room(one.actor, "two")
    await one.start("r", 1, key="k")
    await two.start("r", 2, key="k")
    assert [(await one.get("r")).input, (await two.get("r")).input] == [1, 2]
    await one.stop_all("k")
    assert [(await one.get("r")).state, (await two.get("r")).state] == ["stopped", "queued"]


async def test_a_start_is_told_to_observers_once(quick: Rooms):
    events: list = []
    room = await quick.room(settings={"observers": [events.append]}, conflict="queue")
    for run in ("a", "b", "a"):
        await room.start(run, key="k")
    assert [e for e in events if isinstance(e, RunQueued)] == [
        RunQueued("agent", "a", "k", False), RunQueued("agent", "b", "k", True),
    ]  # fmt: skip


async def test_a_collection_may_be_made_before_the_client_is_opened(quick: Rooms):
    hf = Holdfast(quick.url)
    agent = hf.runs("agent")
    assert repr(agent) == "<Runs agent kind=agent slots=1>"
    async with hf:
        assert (await agent.start("r")).state == "queued"


# -- conflicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3])
async def test_reject_says_who_is_in_the_way(rooms: Rooms, slots: int):
    room, other = await rooms.two(slots=slots)
    for number in range(slots):
        assert not (await room.start(f"r{number}", key="k")).waits
    error = await other.refuses(RunActive, "start", "new", key="k")
    assert (error.run.id, error.run.state, str(error).split(":")[0]) == ("r0", "queued", "wait, or stop it first")
    # a claimed one has an owner, which is said
    run = await room.claim("r0")
    error = await other.refuses(RunActive, "start", "new", key="k")
    assert (error.run.state, error.run.owner) == ("running", room.actor.hf._core.owner)
    # and when it has ended there is a place
    await room.end(run)
    assert (await other.start("new", key="k")).state == "queued"
    # other keys, and none, are not concerned
    assert (await other.start("elsewhere", key="l")).state == "queued"
    for number in range(slots + 1):
        assert (await other.start(f"free{number}")).state == "queued"


@pytest.mark.parametrize("slots", [1, 2])
async def test_queue_lets_runs_wait_and_go_on_in_order(rooms: Rooms, slots: int):
    room, other = await rooms.two(slots=slots, conflict="queue")
    names = [f"r{number}" for number in range(slots + 3)]
    started = [await (room, other)[number % 2].start(name, key="k") for number, name in enumerate(names)]
    assert [run.waits for run in started] == [False] * slots + [True] * 3
    assert {run.state for run in started} == {"queued"}
    assert await room.count(key="k") == slots + 3
    # when one that has a slot ends, expect the first that waits to get it
    for number in range(3):
        await room.end(await room.claim(names[number]))
        waits = [(await room.get(name)).waits for name in names]
        assert waits == [False] * (slots + number + 1) + [True] * (2 - number)


async def test_who_waits_can_leave_and_the_others_move_up(rooms: Rooms):
    room = await rooms.room(conflict="queue")
    for name in ("a", "b", "c"):
        await room.start(name, key="k")
    assert (await room.stop("b")).state == "stopped"
    await room.stop("a")
    run = await room.get("c")
    assert (run.state, run.waits) == ("queued", False)


async def test_replace_stops_the_active_one_and_waits_for_its_end(rooms: Rooms):
    room, other = await rooms.two()
    await room.start("old", key="k")
    run = await room.claim("old")
    new = await other.start("new", key="k", conflict="replace")
    assert (new.state, new.waits) == ("queued", True)
    old = await other.get("old")
    assert (old.state, old.stop_reason) == ("stopping", "replaced by new")
    # its owner has the slot until it has ended
    assert (await other.refuses(RunActive, "claim", "new")).run.id == "old"
    await room.end_stopped(run)
    old, new = await room.get("old"), await room.get("new")
    assert (old.state, old.reason, new.state, new.waits) == ("stopped", "replaced by new", "queued", False)


async def test_replace_of_a_queued_one_ends_it_at_once(rooms: Rooms):
    room = await rooms.room(conflict="replace")
    await room.start("old", key="k")
    assert not (await room.start("new", key="k")).waits
    assert ((await room.get("old")).state, (await room.get("old")).reason) == ("stopped", "replaced by new")
    await room.refuses(RunEnded, "claim", "old")


async def test_replace_of_a_replacement_ends_what_waits_and_not_who_works_twice(rooms: Rooms):
    room = await rooms.room(conflict="replace")
    run = await room.claim("a", key="k")
    await room.start("b", key="k")
    await room.start("c", key="k")
    states = {name: (await room.get(name)) for name in "abc"}
    assert {name: (r.state, r.waits) for name, r in states.items()} == {
        "a": ("stopping", False), "b": ("stopped", False), "c": ("queued", True),
    }  # fmt: skip
    assert (states["a"].stop_reason, states["b"].reason) == ("replaced by b", "replaced by c")
    await room.end_stopped(run)
    assert not (await room.get("c")).waits
    assert (await room.claim("c")).attempt == 1


async def test_replace_with_several_slots_stops_only_as_many_as_it_must(rooms: Rooms):
    room = await rooms.room(slots=2, conflict="replace")
    for name in "ab":
        await room.claim(name, key="k")
    await room.start("c", key="k")
    assert [(await room.get(name)).state for name in "abc"] == ["stopping", "running", "queued"]
    await room.start("d", key="k")
    # the slot that becomes free is d's: c never ran
    assert [(await room.get(name)).state for name in "abcd"] == ["stopping", "running", "stopped", "queued"]


async def test_join_answers_the_active_one(rooms: Rooms):
    room, other = await rooms.two(slots=2, conflict="join")
    assert (await room.start("a", 1, key="k")).id == "a"
    assert (await room.start("b", 2, key="k")).id == "b"
    joined = await other.start("c", 3, key="k")
    assert (joined.id, joined.input) == ("b", 2)
    assert sum((await room.totals()).values()) == 2


async def test_a_policy_is_for_one_start_and_the_collections_is_the_default(rooms: Rooms):
    room = await rooms.room(conflict="queue")
    await room.start("a", key="k")
    assert (await room.start("b", key="k")).waits
    await room.refuses(RunActive, "start", "c", key="k", conflict="reject")
    assert (await room.start("d", key="k", conflict="join")).id == "a"


# -- bounds ---------------------------------------------------------------------------------------------------------


async def test_too_many_may_not_wait_for_a_key(rooms: Rooms):
    room = await rooms.room(conflict="queue", max_waiting=2)
    for name in "abc":
        await room.start(name, key="k")
    error = await room.refuses(QueueFull, "start", "d", key="k")
    assert str(error).startswith("try again later, or raise the bound: 2 runs wait already for this key")
    assert (await room.start("a", key="k")).state == "queued"  # the same again is no new one
    assert (await room.start("d", key="l")).state == "queued"  # another key is not concerned
    await room.stop("b")
    assert (await room.start("e", key="k")).waits


async def test_too_many_may_not_be_queued_in_a_collection(rooms: Rooms):
    room = await rooms.room(conflict="queue", max_queued=3)
    for name in "abc":
        await room.start(name, key="k")
    error = await room.refuses(QueueFull, "start", "d")
    assert "3 runs wait already for this collection" in str(error)
    # those that run are not in the queue
    await room.claim("a")
    assert (await room.start("d")).state == "queued"


async def test_a_bound_of_none_lets_nobody_wait(quick: Rooms):
    room = await quick.room(conflict="queue", max_waiting=0)
    await room.claim("a", key="k")
    await room.refuses(QueueFull, "start", "b", key="k")
    # replacing is not waiting in a queue: there is never more than one
    assert (await room.start("b", key="k", conflict="replace")).waits


# -- together -------------------------------------------------------------------------------------------------------


async def test_of_many_that_start_at_once_one_gets_the_slot(rooms: Rooms):
    # Given several clients that start another run of one key at the same moment
    all_rooms = [Room(actor) for actor in await rooms.actors(4)]
    started = [
        room.actor.start(lambda _, room=room, n=n: room.runs.start(f"r{n}", key="k"))
        for n, room in enumerate(all_rooms * 3)
    ]
    results = await asyncio.gather(*started, return_exceptions=True)
    # expect one run, and everybody else told which
    runs = [result for result in results if not isinstance(result, BaseException)]
    assert len(runs) == 1
    assert {error.run.id for error in results if isinstance(error, RunActive)} == {runs[0].id}
    assert sum((await all_rooms[0].totals()).values()) == 1


async def test_of_many_that_start_the_same_all_get_the_same(rooms: Rooms):
    all_rooms = [Room(actor) for actor in await rooms.actors(3)]
    started = [room.actor.start(lambda _, room=room: room.runs.start("r", 1, key="k")) for room in all_rooms * 3]
    runs = await asyncio.gather(*started)
    assert len({(run.id, run.created, run.state) for run in runs}) == 1
