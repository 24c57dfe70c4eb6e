"""Ids, payloads and arguments of runs: what comes back as it was, and what is refused before anything is sent."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from run_rooms import Room, Rooms, data_of

import holdfast
from holdfast import ConfigurationError, InvalidId, InvalidPayload, TooLarge
from support.conditions import until

HOSTILE = [
    "a:b", "a%3ab", "a\nb", "{a}", "}a{", "*", "a b", "\x00", "!", "é", "e\u0301", "\ud800", b"\xff\xfe", "☃" * 170,
    "r:a", "due", "a}:r:b", "'; return 1 --", "%d", "0-0",
]  # fmt: skip


NO_RENEWAL = 600.0
"""Seconds: a lease whose renewal does not come between."""


async def refuses(rooms: Rooms, room: Room, call: Any, kind: Any = ConfigurationError) -> None:
    """It raises, says first what to do, and no script was run."""
    before = rooms.scripts_run()
    with pytest.raises(kind) as caught:
        await room.actor.do(lambda _: call())
    first = str(caught.value).split()[0]
    assert first in ("pass", "nest", "name", "store", "send", "split", "make"), (
        f"it does not say what to do: {caught.value}"
    )
    assert rooms.scripts_run() == before, "something was sent"


# -- ids ------------------------------------------------------------------------------------------------------------


async def test_ids_and_keys_of_every_kind_are_apart(rooms: Rooms):
    # Given a run of each id with a key of the same form, and one event each
    room = await rooms.room()
    for number, name in enumerate(HOSTILE):
        run = await room.claim(name, input=number, key=name)
        assert (run.id, run.key) == (name, name)
        await room.on(run, "emit", number)
        await room.on(run, "step", "☃ {x}\n", int)
        await room.end(run)
    # expect each to be found as it was
    assert await room.totals() == dict.fromkeys(await room.totals(), 0) | {"completed": len(HOSTILE)}
    for number, name in enumerate(HOSTILE):
        found = await room.get(name)
        assert (found.id, found.key, found.input) == (name, name, number)
        assert data_of(await room.events(name)) == [number]
        assert [one.id for one in await room.list(key=name)] == [name]
    assert {run.id for run in await room.list()} == set(HOSTILE)
    # and the hash tag is ours
    assert all(key.count("{") == 1 and key.count("}") == 1 for key in list(rooms.backend.keys()))


async def test_names_of_collections_of_every_kind_are_apart(quick: Rooms):
    room = await quick.room()
    for name in ("a:b", "{a}", "}", "*", "a b", "\x00", "é", "e\u0301", "a.5"):
        other = Room(room.actor, name)
        await other.start("r", name)
        assert (await other.get("r")).input == name
        assert await other.count() == 1


async def test_an_owners_name_may_be_anything(quick: Rooms):
    room = await quick.room(settings={"name": "a:b {x} é\n☃"})
    await room.claim("r")
    owner = (await room.get("r")).owner
    assert owner.endswith("a:b {x} é ☃")
    assert [run.id for run in await room.list(owner=owner)] == ["r"]


async def test_an_id_that_is_none_is_refused(quick: Rooms):
    room = await quick.room()
    for wrong in ("", b"", "x" * 513, "é" * 257, 7, None, ("a",), bytearray(b"a")):
        for name in ("start", "claim", "get", "stop", "wait", "stop_all"):
            await refuses(quick, room, lambda wrong=wrong, name=name: getattr(room.runs, name)(wrong), InvalidId)
        await refuses(quick, room, lambda wrong=wrong: room.read(wrong), InvalidId)
        if wrong is not None:
            await refuses(quick, room, lambda wrong=wrong: room.runs.start("r", key=wrong), InvalidId)
            await refuses(quick, room, lambda wrong=wrong: room.runs.list(key=wrong), InvalidId)


# -- payloads -------------------------------------------------------------------------------------------------------

VALUES = [
    None, True, 0, -1, 2**63, 10**3000, 0.1, -0.0, "", "☃", "\x00", "a" * 10_000, b"", b"\x00\xff" * 500, [], {},
    [[], [None]], {"a": {"b": [1, b"x"]}}, {"é": 1, "e\u0301": 2, "": 3},
]  # fmt: skip


async def test_payloads_come_back_as_they_were(rooms: Rooms):
    room, other = await rooms.two()
    run = await room.claim("r", input=VALUES)
    assert run.input == VALUES
    for value in VALUES:
        await room.on(run, "emit", value)
    await room.on(run, "checkpoint", VALUES)
    assert await room.on(run, "step", "s", lambda: VALUES) == VALUES
    run.result = VALUES
    await room.end(run)
    ended = await other.get("r")
    assert ended.input == ended.result == VALUES
    events = await other.events("r")
    assert data_of(events) == VALUES
    assert [type(value) for value in data_of(events)] == [type(value) for value in VALUES]
    assert events[-1].data["result"] == VALUES


async def test_what_is_no_payload_is_refused_before_anything_is_sent(quick: Rooms):
    room = await quick.room(lease=NO_RENEWAL)
    run = await room.claim("r")
    loop: list = []
    loop.append(loop)
    for wrong in (math.nan, {"a": [math.inf]}, loop, object(), print, "\ud800", 1j):
        for call in (
            lambda wrong=wrong: room.runs.start("new", wrong),
            lambda wrong=wrong: room.runs.claim("new", input=wrong),
            lambda wrong=wrong: run.emit(wrong),
            lambda wrong=wrong: run.checkpoint(wrong),
            lambda wrong=wrong: run.step("s", lambda: wrong),
        ):
            await refuses(quick, room, call, InvalidPayload)
    assert run.steps == ()
    await room.end(run)
    assert len(await room.events("r")) == 1


async def test_what_is_too_large_is_refused(quick: Rooms):
    room = await quick.room(settings={"max_message_bytes": 2000}, max_event_bytes=1024, lease=NO_RENEWAL)
    run = await room.claim("r")
    for call in (
        lambda: room.runs.start("new", "x" * 2001),
        lambda: room.runs.claim("new", input="x" * 2001),
        lambda: run.checkpoint("x" * 2001),
        lambda: run.emit("x" * 600),
    ):
        await refuses(quick, room, call, TooLarge)
    await room.on(run, "emit", "x" * 480)


async def test_a_result_that_is_no_payload_is_told_and_the_run_does_not_go_on_for_ever(quick: Rooms):
    room = await quick.room()

    def work(run: Any) -> None:
        run.result = object()

    with pytest.raises(InvalidPayload):
        await room.body("r", work)
    run = await room.get("r")
    assert (run.state, run.reason.split(":")[0]) == ("failed", "InvalidPayload")


# -- arguments ------------------------------------------------------------------------------------------------------

WRONG_COLLECTIONS: list[dict[str, Any]] = [
    {"kind": ""}, {"kind": 5}, {"kind": "x" * 65}, {"slots": 0}, {"slots": 1.5}, {"slots": True}, {"slots": 10_001},
    {"conflict": "wait"}, {"conflict": None}, {"lease": 0}, {"lease": "1"}, {"lease": math.nan}, {"lease": 1e9},
    {"max_attempts": 0}, {"max_attempts": 1.0}, {"retention": 0}, {"retention": -1}, {"retention": math.inf},
    {"max_events": 7}, {"max_events": None, "max_event_bytes": 1023}, {"emit_delay": -1}, {"emit_delay": 61},
    {"max_waiting": -1}, {"max_queued": 0}, {"stuck_after": 0},
]  # fmt: skip


async def test_a_collection_that_cannot_work_is_refused(quick: Rooms):
    room = await quick.room()
    for wrong in WRONG_COLLECTIONS:
        with pytest.raises(ConfigurationError) as caught:
            room.actor.hf.runs("agent", **wrong)
        name = list(wrong)[-1]
        assert str(caught.value).startswith(f"pass {name}"), caught.value
    for name in ("", "x" * 65, 5, b"bytes", None):
        with pytest.raises(ConfigurationError):
            room.actor.hf.runs(name)


async def test_arguments_that_cannot_work_are_refused(quick: Rooms):
    room = await quick.room()
    await room.start("r")
    runs = room.runs
    for call in (
        lambda: runs.start("new", conflict="wait"),
        lambda: runs.start("new", conflict=5),
        lambda: runs.claim("r", lease=0),
        lambda: runs.claim("r", lease=1e9),
        lambda: runs.claim("r", max_attempts=0),
        lambda: runs.wait("r", -1),
        lambda: runs.wait("r", math.nan),
        lambda: room.read("r", timeout=0),
        lambda: room.read("r", keep_alive=0),
        lambda: room.read("r", keep_alive="1"),
        lambda: room.read("r", "x"),
        lambda: room.read("r", "5"),
        lambda: room.read("r", 5),
        lambda: room.read("r", "1-1\n"),
        lambda: room.read("r", "-1-0"),
        lambda: runs.list(state="over"),
        lambda: runs.list(key="k", owner="o"),
        lambda: runs.list(count=0),
        lambda: runs.list(count=10_001),
        lambda: runs.count(state="over"),
        lambda: runs.count(key="k", owner="o"),
        lambda: runs.count(key="k", state="queued"),
    ):
        await refuses(quick, room, call)


async def test_a_step_needs_a_name(quick: Rooms):
    room = await quick.room(lease=NO_RENEWAL)
    run = await room.claim("r")
    for wrong in ("", 5, None, "x" * 513, b"x"):
        await refuses(quick, room, lambda wrong=wrong: run.step(wrong, int))


async def test_a_runner_that_cannot_work_is_refused(quick: Rooms):
    hf = (await quick.room()).actor.hf
    agent = hf.runs("agent")
    for wrong in ({"concurrency": 0}, {"timeout": 0}, {"stop_grace": -1}, {"timeout": "1"}):
        with pytest.raises(ConfigurationError, match=f"^pass {next(iter(wrong))}"):
            hf.runner(agent, **wrong)(print)
    with pytest.raises(ConfigurationError, match=r"^decorate a function"):
        hf.runner(agent)("think")
    hf.runner(agent)(print)
    with pytest.raises(ConfigurationError, match=r"^register one runner"):
        hf.runner(agent)(print)
    with pytest.raises(ConfigurationError, match=r"^make the collection with archive=True"):
        hf.archive(agent, None)


async def test_a_client_that_is_not_open_says_so(quick: Rooms):
    hf = holdfast.sync.Holdfast(quick.url)
    with pytest.raises(ConfigurationError, match=r"^open it first"):
        hf.runs("agent").get("r")


async def test_readers_that_are_left_alone_leave_nothing_behind(quick: Rooms):
    room = await quick.room(lease=NO_RENEWAL)
    run = await room.claim("r")
    await room.emit(run, 1)

    def read_one(_: Any) -> Any:
        reading = room.runs.events("r")
        return next(reading) if room.blocking else contextlib.aclosing(reading).thing.__anext__()

    assert (await room.actor.do(read_one)).data == 1
    core = room.actor.hf._core
    await until(lambda: not core.feeds, what="the end of the reader")
