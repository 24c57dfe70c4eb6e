"""Stopping, waiting, listing and counting runs, and how long they are kept."""

from __future__ import annotations

import asyncio

import pytest
from run_rooms import Room, Rooms, kinds_of

from holdfast import RunEnded, RunGone
from holdfast.events import RunStopping
from holdfast.runs import feed
from support.conditions import until


def names(runs: list) -> set:
    return {run.id for run in runs}


async def gone(room: Room, run_id: str) -> bool:
    try:
        await room.get(run_id)
    except RunGone:
        return True
    return False


# -- stop -----------------------------------------------------------------------------------------------------------


async def test_a_queued_run_is_stopped_at_once(rooms: Rooms):
    told: list = []
    room = await rooms.room(settings={"observers": [told.append]})
    await room.start("r", key="k")
    run = await room.stop("r", "not needed")
    assert (run.state, run.reason, run.over, run.started) == ("stopped", "not needed", True, None)
    assert run.ended is not None
    assert await room.stop("r", "again") == run
    assert (await room.events("r"))[-1].data == {"state": "stopped", "reason": "not needed", "result": None}
    assert next(e for e in told if isinstance(e, RunStopping)) == RunStopping("agent", "r", "not needed", "stopped")


async def test_a_running_run_is_stopping_and_the_first_reason_stays(rooms: Rooms):
    room, other = await rooms.two()
    run = await room.claim("r")
    for reason in ("first", "second"):
        asked = await other.stop("r", reason)
        assert (asked.state, asked.stop_reason, asked.reason, asked.over) == ("stopping", "first", "", False)
    await until(lambda: run.stopping, what="the word")
    await room.end_stopped(run)
    assert ((await other.get("r")).state, (await other.get("r")).reason) == ("stopped", "first")


@pytest.mark.parametrize("state", ["completed", "failed", "stopped"])
async def test_a_run_that_has_ended_is_answered_as_it_is(rooms: Rooms, state: str):
    room, other = await rooms.two()
    run = await room.claim("r")
    if state == "stopped":
        await other.stop("r")
    await (room.end(run, ValueError("x")) if state == "failed" else room.end_stopped(run))
    ended = await room.get("r")
    assert ended.state == state
    assert await other.stop("r", "too late") == ended
    assert kinds_of(await room.events("r")) == ["end"]


async def test_a_stop_of_a_run_whose_owner_is_lost_ends_it(rooms: Rooms):
    room, other = await rooms.two()
    run = await room.dead("r")
    await other.stop("r", "enough")
    ended = await other.becomes("r", "stopped")
    assert (ended.reason, ended.attempt) == ("enough", 1)
    await until(lambda: run.lost, what="the loss, told to who was its owner")


async def test_all_runs_of_a_key_are_stopped_in_one_step(rooms: Rooms):
    room, other = await rooms.two(slots=2, conflict="queue")
    run = await room.claim("a", key="k")
    for name in "bcd":
        await room.start(name, key="k")
    await room.start("other", key="l")
    assert await other.stop_all("k", "user left") == 4
    assert [(await room.get(name)).state for name in "abcd"] == ["stopping", "stopped", "stopped", "stopped"]
    assert {(await room.get(name)).reason for name in "bcd"} == {"user left"}
    assert (await room.get("other")).state == "queued"
    await until(lambda: run.stopping, what="the word")
    await room.end_stopped(run)
    assert await other.stop_all("k") == 0
    assert await other.stop_all("nobody") == 0


# -- wait -----------------------------------------------------------------------------------------------------------


async def test_wait_answers_the_run_when_it_has_ended(rooms: Rooms):
    room, other = await rooms.two()
    run = await room.claim("r")
    waiting = other.actor.start(lambda _: other.runs.wait("r", 10))
    await until(lambda: other.actor.hf._core.feeds, what="a reader")
    await room.emit(run, 1)
    run.result = "done"
    await room.end(run)
    ended = await asyncio.wait_for(waiting, 5)
    assert (ended.state, ended.result) == ("completed", "done")
    assert await other.wait("r") == ended
    assert not other.actor.hf._core.feeds


async def test_wait_has_an_end(quick: Rooms):
    room = await quick.room()
    run = await room.claim("r")
    for seconds in (0.0, 0.1):
        with pytest.raises(TimeoutError):
            await room.wait("r", seconds)
    assert not room.actor.hf._core.feeds
    await room.end(run)
    assert (await room.wait("r", 0.0)).state == "completed"


async def test_wait_ends_a_run_whose_owner_is_lost(quick: Rooms, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "CHECK", 0.2)
    room, other = await quick.two()
    await room.dead("r", max_attempts=1)
    assert (await other.wait("r", 5)).reason == "worker lost"


# -- lists ----------------------------------------------------------------------------------------------------------


async def test_runs_are_found_by_state_key_and_owner(rooms: Rooms):
    room, other = await rooms.room(conflict="queue"), await rooms.room(settings={"name": "second one"})
    for name in ("queued", "waiting"):
        await room.start(name, {"in": name}, key="k")
    claimed = {name: await room.claim(name) for name in ("completed", "failed", "stopped", "stopping")}
    mine = await other.claim("running", key="mine")
    for name in ("stopped", "stopping"):
        await other.stop(name)
    await room.end(claimed["completed"])
    await room.end(claimed["failed"], ValueError("x"))
    await room.end_stopped(claimed["stopped"])
    # states
    by_state = {state: names(await room.list(state=state)) for state in (await room.totals())}
    assert by_state == {
        "queued": {"queued", "waiting"}, "running": {"running"}, "stopping": {"stopping"}, "completed": {"completed"},
        "failed": {"failed"}, "stopped": {"stopped"},
    }  # fmt: skip
    assert await room.totals() == {state: len(found) for state, found in by_state.items()}
    assert names(await other.list()) == set().union(*by_state.values())
    assert [await room.count(state=state) for state in by_state] == [2, 1, 1, 1, 1, 1]
    assert await room.count() == 7
    # keys
    assert names(await room.list(key="k")) == {"queued", "waiting"}
    assert names(await room.list(key="mine")) == {"running"}
    assert (await room.list(key="nobody"), await room.count(key="nobody")) == ([], 0)
    await room.stop("queued")
    assert (names(await room.list(key="k")), await room.count(key="k")) == ({"queued", "waiting"}, 2)
    assert names(await room.list(key="k", state="stopped")) == {"queued"}
    # owners
    owner = other.actor.hf._core.owner
    assert owner.endswith("second one")
    assert [run.owner for run in await room.list(owner=owner)] == [owner]
    assert (names(await room.list(owner=owner)), await room.count(owner=owner)) == ({"running"}, 1)
    assert names(await room.list(owner=room.actor.hf._core.owner)) == {"stopping"}
    assert await room.list(owner="nobody 1") == []
    await other.end(mine)
    assert (await room.list(owner=owner), await room.count(owner=owner)) == ([], 0)


async def test_lists_have_no_input_or_result_and_as_many_as_asked_for(rooms: Rooms):
    room = await rooms.room()
    for number in range(5):
        await room.start(f"r{number}", "large")
    assert [run.input for run in await room.list()] == [None] * 5
    assert [run.id for run in await room.list(count=2)] == ["r4", "r3"]


async def test_stuck_runs_are_listed(quick: Rooms):
    room, other = await quick.two(stuck_after=0.2)
    stuck, busy = await room.claim("stuck"), await room.claim("busy")

    async def found() -> bool:
        await room.emit(busy, 1)
        return names(await other.list(stuck=True)) == {"stuck"}

    await until(found, what="one that is stuck")
    await room.emit(stuck, 1)
    assert await other.list(stuck=True) == []


# -- without anybody who works --------------------------------------------------------------------------------------


def over_there(rooms: Rooms, room: Room) -> bool:
    """The server's clock is past every lease. Looked at from outside, so that nothing is ended by looking."""
    (server,) = rooms.backend.primaries()
    with server:
        seconds, micros = server.time()
        return server.zscore(room.runs._spec.held, "r") <= seconds * 1000 + micros / 1000 - 1


@pytest.mark.parametrize("how", ["get", "list", "totals", "count", "events", "start", "stop_all", "claim"])
async def test_whoever_looks_ends_a_run_whose_owner_is_lost(quick: Rooms, how: str):
    # Given a run whose owner has died, and nobody that works
    room, other = await quick.two(max_attempts=1, conflict="reject")
    run = await room.dead("r", key="k")
    await until(lambda: run.lost, what="the end of the lease here")
    await until(lambda: over_there(quick, other), what="the end of the lease by the server's clock, a little later")
    # when somebody looks, expect its end
    if how == "get":
        assert (await other.get("r")).state == "failed"
    elif how == "list":
        assert [(one.id, one.state) for one in await other.list(key="k")] == [("r", "failed")]
        assert await other.list(state="running") == []
    elif how in ("totals", "count"):
        assert (await other.totals())["failed"] == 1 if how == "totals" else await other.count(state="failed") == 1
    elif how == "events":
        assert (await other.events("r"))[-1].data["reason"] == "worker lost"
    elif how == "stop_all":
        assert await other.stop_all("k") == 0
    else:
        assert (await getattr(other, how)("new", key="k")).id == "new"
    assert (await other.get("r")).reason == "worker lost"


# -- retention ------------------------------------------------------------------------------------------------------


async def test_a_run_that_has_ended_is_kept_for_a_while_and_then_gone(rooms: Rooms):
    room, other = await rooms.two(retention=0.4)
    await room.body("r", key="k")
    await room.start("queued", key="k")
    assert (await other.get("r")).state == "completed"
    await until(lambda: gone(other, "r"), within=5, what="the end of its retention")
    for name in ("events", "wait", "get"):
        await other.refuses(RunGone, name, "r")
    assert names(await other.list()) == names(await other.list(key="k")) == {"queued"}
    assert (await other.totals(), await other.count(key="k")) == (
        dict.fromkeys(await other.totals(), 0) | {"queued": 1},
        1,
    )
    # nothing of it is left, and the same id is a new run
    assert not [key for key in list(rooms.backend.keys()) if key.endswith((":r:r", ":e:r", ":s:r"))]
    assert (await other.start("r", "other")).input == "other"


async def test_a_stop_that_is_faster_than_the_start_is_kept_for_a_while(rooms: Rooms):
    room, other = await rooms.two()
    await room.refuses(RunGone, "stop", "r", "never mind")
    await room.refuses(RunGone, "get", "r")
    run = await other.start("r", "something", key="k")
    assert (run.state, run.reason, run.attempt) == ("stopped", "never mind", 0)
    assert [event.kind for event in await other.events("r")] == ["end"]
    # its slot is free, and a claim finds the same
    await room.refuses(RunGone, "stop", "s")
    assert (await other.refuses(RunEnded, "claim", "s", key="k")).run.state == "stopped"
    assert (await other.start("t", key="k")).state == "queued"


async def test_a_reader_that_waits_is_told_when_a_run_is_gone(quick: Rooms, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "CHECK", 0.1)
    room, other = await quick.two()
    await room.start("r")
    reader = other.actor.start(lambda _: other.read("r"))
    await until(lambda: other.actor.hf._core.feeds, what="a reader")
    quick.backend.flush()
    with pytest.raises(RunGone):
        await asyncio.wait_for(reader, 5)


async def test_what_has_not_ended_has_a_life_that_is_far_from_its_end(quick: Rooms):
    room = await quick.room(retention=1.0, conflict="queue")
    run = await room.claim("a", key="k")
    await room.emit(run, 1)
    await room.on(run, "step", "s", int)
    await room.start("b", key="k")
    lives = quick.backend.keys()
    assert len(lives) > 8
    assert min(lives.values()) > 86_400_000
