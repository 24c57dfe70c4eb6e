"""What an owner leaves behind for the next one, checkpoints and steps, and how it is told to stop."""

from __future__ import annotations

import pytest
from run_rooms import Rooms, data_of, kinds_of

from holdfast import ConfigurationError, RunStopped
from support.conditions import until


async def test_a_checkpoint_is_found_by_the_next_owner(rooms: Rooms):
    room, other = await rooms.two()
    old = await room.dead("r", emits=["a"], saves={"at": 1})
    assert old.saved == {"at": 1}
    new = await other.claim_when_free("r")
    assert new.saved == {"at": 1}
    await other.emit(new, "b")
    await other.end(new)
    events = await other.events("r")
    assert kinds_of(events) == ["data", "resumed", "data", "end"]
    assert events[1].data == {"attempt": 2, "after": events[0].id}
    assert data_of(events) == ["a", "b"]


async def test_a_checkpoint_comes_with_the_events_before_it(quick: Rooms):
    room, other = await quick.two(emit_delay=30.0)
    run = await room.claim("r")
    for number in range(5):
        await room.on(run, "emit", number)
    await room.on(run, "checkpoint", 5)
    assert (await other.get("r")).events == 5
    for number in range(5, 8):
        await room.on(run, "emit", number)
    run._given.hold.abandoned = True
    assert (await other.get("r")).events == 5


async def test_what_came_after_the_last_checkpoint_is_said_to_be_repeated(quick: Rooms):
    room, other = await quick.two()
    old = await room.dead("r", emits=[1, 2], saves="here")
    await room.emit(old, 3)
    new = await other.claim_when_free("r")
    await other.emit(new, 3)
    await other.end(new)
    events = await other.events("r")
    (resumed,) = [event for event in events if event.kind == "resumed"]
    assert [e.data for e in events if e.kind == "data" and e.id <= resumed.data["after"]] == [1, 2]


async def test_a_step_is_done_once_over_all_attempts(rooms: Rooms):
    room, other = await rooms.two()
    calls: list = []

    def charge(amount, *, currency):
        calls.append(amount)
        return {"charged": amount, "in": currency}

    old = await room.claim("r", lease=0.5)
    done = await room.actor.do(lambda _: old.step("charge", charge, 5, currency="eur"))
    again = await room.actor.do(lambda _: old.step("charge", charge, 5, currency="eur"))
    assert done == again == {"charged": 5, "in": "eur"}
    assert old.steps == ("charge",)
    old._given.hold.abandoned = True
    new = await other.claim_when_free("r")
    assert new.steps == ("charge",)
    assert await other.actor.do(lambda _: new.step("charge", charge, 5, currency="eur")) == done
    assert await other.on(new, "step", "none", lambda: None) is None
    assert await other.on(new, "step", "none", lambda: 1) is None
    assert calls == [5]


async def test_a_step_that_raises_is_not_done(quick: Rooms):
    room = await quick.room()
    run = await room.claim("r")
    with pytest.raises(ZeroDivisionError):
        await room.on(run, "step", "s", lambda: 1 // 0)
    assert run.steps == ()
    assert await room.on(run, "step", "s", lambda: 2) == 2


async def test_a_step_may_be_a_coroutine_function_only_on_asyncio(quick: Rooms):
    room = await quick.room()
    run = await room.claim("r")

    async def fetch():
        return 1

    if quick.api == "async":
        assert await room.on(run, "step", "s", fetch) == 1
    else:
        with pytest.raises(ConfigurationError, match="pass a plain function"):
            await room.on(run, "step", "s", fetch)


async def test_a_checkpoint_and_a_check_say_that_it_should_stop(rooms: Rooms):
    room, other = await rooms.two()
    run = await room.claim("r")
    await other.stop("r")
    await until(lambda: run.stopping, what="the word")
    for name, args in (("checkpoint", (1,)), ("check", ()), ("step", ("s", int))):
        with pytest.raises(RunStopped, match="clean up and return"):
            await room.on(run, name, *args)
    await room.emit(run, "a last word")
    await room.end_stopped(run)
    assert data_of(await room.events("r")) == ["a last word"]


async def test_a_checkpoint_that_stores_finds_the_stop_that_no_message_told(quick: Rooms):
    room, other = await quick.two(lease=30)
    room.actor.hf._core.mailbox.on_stop = lambda token, reason: None
    run = await room.claim("r")
    await other.stop("r")
    assert not run.stopping
    with pytest.raises(RunStopped):
        await room.on(run, "checkpoint", "saved all the same")
    assert (run.stopping, run.saved) == (True, "saved all the same")


async def test_on_stop_is_called_once_it_should_stop(quick: Rooms):
    room, other = await quick.two()
    run = await room.claim("r")
    calls: list = []
    run.on_stop(lambda: calls.append("first"))
    leave = run.on_stop(lambda: calls.append("left"))
    leave()
    await other.stop("r")
    await until(lambda: calls, what="the call")
    run.on_stop(lambda: calls.append("late"))
    assert calls == ["first", "late"]
