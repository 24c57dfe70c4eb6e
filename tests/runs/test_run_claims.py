"""Owning a run: claim in every state, takeover, attempts, what an owner leaves behind for the next."""

from __future__ import annotations

import asyncio
import gc

import pytest
from run_rooms import SHORT, Room, Rooms, data_of, kinds_of

from holdfast import LeaseLost, RunActive, RunEnded, RunGone, RunStopped
from holdfast.events import Lost, RunFinished, RunReturned, RunTaken
from support.conditions import until

# -- whose it is ----------------------------------------------------------------------------------------------------


async def test_a_claim_makes_the_run_and_owns_it(rooms: Rooms):
    room, other = await rooms.two(kind="workflow")
    run = await room.claim("r", input={"a": 1}, key="k", lease=20)
    assert (run.id, run.input, run.key, run.kind, run.attempt) == ("r", {"a": 1}, "k", "workflow", 1)
    assert (run.saved, run.stopping, run.draining, run.lost, run.result) == (None, False, False, False, None)
    assert 15 < run.remaining() <= 20
    run.check()
    seen = await other.get("r")
    assert (seen.state, seen.owner, seen.attempt, seen.fence) == ("running", room.actor.hf._core.owner, 1, run.fence)
    assert (seen.input, seen.key, seen.kind) == ({"a": 1}, "k", "workflow")
    assert seen.created <= seen.started == seen.progress
    assert abs(seen.heartbeat - seen.started) < 0.01
    error = await other.refuses(RunActive, "claim", "r")
    assert (error.run.owner, error.run.state) == (room.actor.hf._core.owner, "running")
    assert room.actor.hf._core.owner in str(error)


async def test_a_claim_takes_a_queued_run_with_its_input(rooms: Rooms):
    room, other = await rooms.two()
    await room.start("r", [1, 2], key="k")
    run = await other.claim("r")
    assert (run.input, run.key, run.attempt) == ([1, 2], "k", 1)
    await room.refuses(RunActive, "claim", "r")


@pytest.mark.parametrize("state", ["completed", "failed", "stopped"])
async def test_a_claim_of_a_run_that_is_over_says_how_it_ended(rooms: Rooms, state: str):
    room, other = await rooms.two()
    run = await room.claim("r")
    if state == "stopped":
        await room.stop("r", "enough")
        with pytest.raises(RunStopped):  # although its body ended as it should
            await room.end(run)
    else:
        await room.end(run, ValueError("bad") if state == "failed" else None)
    error = await other.refuses(RunEnded, "claim", "r")
    assert (error.run.state, error.run.reason) == (
        state,
        {"completed": "", "failed": "ValueError: bad", "stopped": "enough"}[state],
    )
    assert str(error).startswith("leave it: this run is over")


async def test_a_stopping_run_is_its_owners(rooms: Rooms):
    room, other = await rooms.two()
    await room.claim("r")
    await other.stop("r")
    assert (await other.refuses(RunActive, "claim", "r")).run.state == "stopping"


async def test_a_claim_of_a_run_that_waits_says_who_has_the_slot(rooms: Rooms):
    room = await rooms.room(conflict="queue")
    run = await room.claim("a", key="k")
    await room.start("b", key="k")
    error = await room.refuses(RunActive, "claim", "b")
    assert (error.run.id, error.run.state) == ("a", "running")
    await room.end(run)
    assert (await room.claim("b")).attempt == 1


async def test_a_claim_of_a_new_run_needs_a_slot_of_its_key(rooms: Rooms):
    room, other = await rooms.two(slots=2)
    await room.claim("a", key="k")
    second = await room.claim("b", key="k")
    assert (await other.refuses(RunActive, "claim", "c", key="k")).run.id == "a"
    await other.refuses(RunGone, "get", "c")
    await room.end(second)
    assert (await other.claim("c", key="k")).attempt == 1


async def test_of_many_that_claim_at_once_one_gets_it(rooms: Rooms):
    all_rooms = [Room(actor) for actor in await rooms.actors(4)]
    await all_rooms[0].start("r")
    claims = [room.actor.start(lambda _, room=room: room.runs.claim("r")) for room in all_rooms * 3]
    results = await asyncio.gather(*claims, return_exceptions=True)
    owners = [result for result in results if not isinstance(result, BaseException)]
    assert len(owners) == 1
    assert {type(result) for result in results} == {type(owners[0]), RunActive}


# -- takeover -------------------------------------------------------------------------------------------------------


async def test_a_run_is_taken_over_when_its_owners_lease_is_over(rooms: Rooms):
    room, other = await rooms.two()
    old = await room.dead("r", input=7, key="k", emits=[1])
    await other.refuses(RunActive, "claim", "r")
    new = await other.claim_when_free("r")
    assert (new.attempt, new.input, new.key) == (2, 7, "k")
    assert new.fence > old.fence
    # and whatever the first one does from now on is refused
    assert old.lost
    assert old.remaining() == 0.0
    with pytest.raises(LeaseLost):
        old.check()
    for name, args in (("emit", (9,)), ("checkpoint", (9,))):
        with pytest.raises(LeaseLost):
            await room.on(old, name, *args)
    with pytest.raises(LeaseLost):
        await room.end(old)
    assert (await other.get("r")).state == "running"
    await other.end(new)
    assert data_of(await other.events("r")) == [1]


async def test_attempts_are_bounded_and_then_it_has_failed(rooms: Rooms):
    room, other = await rooms.two(max_attempts=2)
    await room.dead("r")
    await (await other.becomes("r", "queued") and other.dead("r"))
    run = await room.becomes("r", "failed")
    assert (run.reason, run.attempt, run.owner) == ("worker lost", 2, "")
    error = await room.refuses(RunEnded, "claim", "r")
    assert error.run.reason == "worker lost"
    assert kinds_of(await room.events("r")) == ["resumed", "end"]


async def test_attempts_may_be_passed_with_the_claim(quick: Rooms):
    room = await quick.room(max_attempts=5)
    await room.dead("r", max_attempts=1)
    assert (await room.becomes("r", "failed")).reason == "worker lost"


async def test_a_lease_is_renewed_as_long_as_the_run_is_owned(quick: Rooms):
    room, other = await quick.two(lease=0.3)
    run = await room.claim("r")
    first = (await other.get("r")).heartbeat

    async def renewed() -> bool:
        return (await other.get("r")).heartbeat > first + 0.5

    await until(renewed, what="renewals beyond the first lease")
    assert not run.lost
    await other.refuses(RunActive, "claim", "r")


async def test_a_run_that_nobody_can_end_any_more_is_not_renewed(quick: Rooms):
    room, other = await quick.two()
    run = await room.claim("r", lease=0.3, max_attempts=1)
    del run
    gc.collect()
    assert (await other.becomes("r", "failed")).reason == "worker lost"


async def test_a_closed_client_hands_its_runs_back(quick: Rooms):
    events: list = []
    hf = await quick.client()
    actor = await quick.actor(hf)
    room, other = Room(actor), await quick.room(max_attempts=1, settings={"observers": [events.append]})
    run = await room.claim("r", lease=30, max_attempts=1)
    await quick.close_client(hf)
    assert run.lost
    again = await other.claim("r")
    assert again.attempt == 2  # of which one does not count
    await other.end(again)
    assert (await other.get("r")).state == "completed"


async def test_a_server_without_the_run_ends_its_owner(quick: Rooms):
    events: list = []
    room = await quick.room(settings={"observers": [events.append]})
    run = await room.claim("r", lease=0.3)
    quick.backend.flush()
    await until(lambda: run.lost, what="the loss")
    with pytest.raises(LeaseLost):
        await room.on(run, "emit", 1)
    assert [(event.what, event.name) for event in events if isinstance(event, Lost)] == [("run", "agent:r")]


# -- the end --------------------------------------------------------------------------------------------------------


async def test_a_body_that_ends_has_completed(rooms: Rooms):
    room, other = await rooms.two()

    def work(run):
        run.result = {"answer": 42}

    await room.body("r", work)
    run = await other.get("r")
    assert (run.state, run.result, run.reason, run.owner, run.over) == ("completed", {"answer": 42}, "", "", True)
    assert run.created <= run.started <= run.ended
    assert run.heartbeat is None
    assert [(e.kind, e.data) for e in await other.events("r")] == [
        ("end", {"state": "completed", "reason": "", "result": {"answer": 42}})
    ]


async def test_a_body_that_raises_has_failed_and_the_error_comes_out(rooms: Rooms):
    room = await rooms.room()

    def work(run):
        raise ValueError("no such tool ☃")

    with pytest.raises(ValueError, match="no such tool"):
        await room.body("r", work)
    run = await room.get("r")
    assert (run.state, run.reason, run.result) == ("failed", "ValueError: no such tool ☃", None)


async def test_a_reason_is_kept_as_far_as_it_may_be_long(quick: Rooms):
    room = await quick.room()
    run = await room.claim("r")
    await room.end(run, ValueError("é" * 5000))
    reason = (await room.get("r")).reason
    assert reason.startswith("ValueError: éé")
    assert 1900 < len(reason.encode()) <= 2000


async def test_a_stopped_body_ends_and_says_so(rooms: Rooms):
    room, other = await rooms.two()
    working = room.actor.start(lambda _: room.start_body("r", room.until_stopped))
    await until(lambda: exists(other, "r"), what="a running run")
    asked = await other.stop("r", "enough")
    assert (asked.state, asked.stop_reason) == ("stopping", "enough")
    with pytest.raises(RunStopped):
        await asyncio.wait_for(working, 5)
    run = await other.get("r")
    assert (run.state, run.reason, run.stop_reason) == ("stopped", "enough", "enough")
    assert (await other.events("r"))[-1].data == {"state": "stopped", "reason": "enough", "result": None}


async def exists(room: Room, run_id: str) -> bool:
    try:
        return (await room.get(run_id)).state == "running"
    except RunGone:
        return False


async def test_a_run_that_should_stop_ends_stopped_whatever_its_body_makes_of_it(rooms: Rooms):
    room, other = await rooms.two()
    for name, error in (("a", None), ("b", ValueError("x"))):
        run = await room.claim(name)
        run.result = "late"
        await other.stop(name)
        await room.end(run, error) if error else await room.end_stopped(run)
        assert (await other.get(name)).state == "stopped"


async def test_an_interrupted_body_hands_the_run_back(quick: Rooms):
    events: list = []
    room = await quick.room(settings={"observers": [events.append]})
    run = await room.claim("r", max_attempts=1)
    await room.on(run, "emit", 1)
    await room.end(run, asyncio.CancelledError() if quick.api == "async" else KeyboardInterrupt())
    left = await room.get("r")
    assert (left.state, left.attempt, left.owner) == ("queued", 1, "")
    again = await room.claim("r")
    assert again.attempt == 2
    await room.end(again)
    told = [e for e in events if isinstance(e, (RunTaken, RunReturned, RunFinished))]
    assert [type(e) for e in told] == [RunTaken, RunReturned, RunTaken, RunFinished]
    assert (told[-1].state, told[-1].attempt, told[1].reason) == ("completed", 2, "given back")
    assert data_of(await room.events("r")) == [1]


async def test_an_attempt_that_was_handed_back_does_not_count(quick: Rooms):
    room = await quick.room(max_attempts=2)
    stop = asyncio.CancelledError if quick.api == "async" else KeyboardInterrupt
    for _ in range(3):
        await room.end(await room.claim("r"), stop())
    await room.dead("r")
    assert (await room.becomes("r", "queued")).attempt == 4
    await room.dead("r")
    run = await room.becomes("r", "failed")
    assert (run.attempt, run.reason) == (5, "worker lost")


async def test_after_its_end_a_run_takes_nothing(quick: Rooms):
    room = await quick.room()
    run = await room.claim("r")
    await room.end(run)
    assert run.lost
    for name, args in (("emit", (1,)), ("flush", ()), ("checkpoint", (1,)), ("step", ("s", int))):
        if name != "flush":
            with pytest.raises(LeaseLost):
                await room.on(run, name, *args)
    assert kinds_of(await room.events("r")) == ["end"]


async def test_a_lease_may_be_short_or_long(quick: Rooms):
    room = await quick.room(lease=7)
    assert 6 < (await room.claim("a")).remaining() <= 7
    assert SHORT / 2 < (await room.claim("b", lease=SHORT)).remaining() <= SHORT
