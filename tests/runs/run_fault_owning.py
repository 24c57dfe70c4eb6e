"""What an owner and a reader do: each sets up, arms the faults, acts, and says what must be so if it returned."""

from __future__ import annotations

from typing import Any

from run_fault_world import World, saved
from run_model_audit import View

from holdfast.runs import owning
from holdfast.runs.feed import Reader


def state_of(view: View, run: str) -> str:
    return view.runs[run].state if run in view.runs else "missing"


def becomes(w: World, run: str, *states: str) -> None:
    w.done = lambda view: state_of(view, run) in states


# -- own ------------------------------------------------------------------------------------------------------------


async def take(w: World) -> None:
    await w.by("start", "a", {"x": 1}, key="k")
    w.arm()
    found = await w.take(w.subject, 1)
    if not found.given:  # it was lost on its way, and the next look finds it
        assert w.plan.hits
        return
    (w.given,) = found.given
    assert (w.given.place.run, w.given.attempt, w.given.key) == ("a", 1, "k")


async def take_many(w: World) -> None:
    for run in "abc":
        await w.by("start", run)
    w.arm()
    found = await w.take(w.subject, 2)
    assert sorted(given.place.run for given in found.given) in (["a", "b"], [])  # found again, they have no order
    assert len({given.hold.fence for given in found.given}) == len(found.given)
    w.plan.faults = {}
    for given in found.given:
        assert await w.settle(w.subject, given, 1, [], "completed") == "completed"


async def take_nothing(w: World) -> None:
    w.arm()
    found = await w.take(w.subject, 2)
    assert not found.given


async def take_what_was_lost(w: World) -> None:
    await w.expired("a", key="k")
    w.arm()
    found = await w.take(w.subject, 2)
    if found.given:
        (w.given,) = found.given
        assert w.given.attempt == 2


async def write_events(w: World) -> None:
    given = await w.owned_by_subject("e0")
    w.maybe["a"] = ["e1", "e2"]
    w.done = lambda view: view.data("a") == ["e0", "e1", "e2"]
    w.arm()
    await w.write(w.subject, given, 2, ["e1", "e2"])
    w.sure["a"], w.maybe["a"] = ["e0", "e1", "e2"], ["e3"]
    w.done = lambda view: view.data("a") == ["e0", "e1", "e2", "e3"]
    await w.write(w.subject, given, 3, ["e3"])
    w.sure["a"] = ["e0", "e1", "e2", "e3"]


async def write_a_checkpoint(w: World) -> None:
    given = await w.owned_by_subject("e0")
    w.maybe["a"] = ["e1"]
    w.done = lambda view: view.runs["a"].fields.get(b"c", b"")[-3:] == b"[7]" and view.data("a") == ["e0", "e1"]
    w.arm()
    await w.write(w.subject, given, 2, ["e1"], "c", b"\x00[7]")
    w.sure["a"] = ["e0", "e1"]


async def write_a_step(w: World) -> None:
    given = await w.owned_by_subject("e0")
    w.maybe["a"] = ["e1"]
    w.done = lambda view: view.steps.get("a") == {b"pay": b"\x00[7]"}
    w.arm()
    await w.write(w.subject, given, 2, ["e1"], "s", b"\x00[7]", "pay")
    w.sure["a"] = ["e0", "e1"]


async def _settled(w: World, outcome: str, state: str, delay: float = 0.0) -> None:
    given = await w.owned_by_subject("e0")
    w.maybe["a"] = ["last"]
    w.done = lambda view: state_of(view, "a") == state and view.data("a") == ["e0", "last"]
    w.arm()
    try:
        answer = await w.settle(w.subject, given, 2, ["last"], outcome, delay)
    finally:
        assert given.hold.over
    w.sure["a"] = ["e0", "last"]
    assert answer == state


async def settle_completed(w: World) -> None:
    await _settled(w, "completed", "completed")
    run = await w.by("get", "a")
    assert (run.result, run.reason) == ("result", "because completed")


async def settle_failed(w: World) -> None:
    await _settled(w, "failed", "failed")


async def settle_stopped(w: World) -> None:
    await _settled(w, "stopped", "stopped")


async def settle_returned(w: World) -> None:
    await _settled(w, "returned", "queued")
    (given,) = (await w.take(w.bystander, 2)).given
    w.kept.append(given)
    assert (given.attempt, saved(given)) == (2, None)
    w.done = None


async def settle_uncounted(w: World) -> None:
    await _settled(w, "uncounted", "queued", delay=0.05)


async def settle_while_stopping(w: World) -> None:
    await w.owned_by_subject("e0")
    await w.by("stop", "a", "enough")
    w.maybe["a"] = ["last"]
    becomes(w, "a", "stopped")
    w.arm()
    assert await w.settle(w.subject, w.given, 2, ["last"], "completed") == "stopped"
    w.sure["a"] = ["e0", "last"]


async def settle_with_one_that_waits(w: World) -> None:
    await w.owned_by_subject()
    await w.by("start", "b", key="k", conflict="queue")
    w.done = lambda view: state_of(view, "a") == "completed" and not view.runs["b"].has(8)
    w.arm()
    assert await w.settle(w.subject, w.given, 1, [], "completed") == "completed"


async def flags(w: World) -> None:
    given = await w.owned_by_subject()
    await w.by("stop", "a", "enough")
    w.arm()
    await w.flow(w.subject, owning.flags, [given.hold], lambda token: True)
    assert given.hold.stopping


# -- read -----------------------------------------------------------------------------------------------------------


def _reader(w: World, after: str | None = None) -> None:
    hf = w.subject.hf
    w.reader = Reader(hf._core, w.runs(hf)._spec, "a", after, 5.0, None)


async def _all_events(w: World) -> list[Any]:
    seen: list[Any] = []
    while not w.reader.over:
        seen += await w.subject.do(lambda hf: hf._open.run(w.reader.more()))
    return seen


async def read_what_is_stored(w: World) -> None:
    given = await w.owned_by_bystander("a")
    await w.write(w.bystander, given, 1, ["e0", "e1"])
    await w.settle(w.bystander, given, 2, ["e2"], "completed")
    w.sure["a"] = ["e0", "e1", "e2"]
    _reader(w)
    w.arm()
    seen = await _all_events(w)
    assert [event.data for event in seen[:-1]] == w.sure["a"]
    assert seen[-1].kind == "end"


async def read_what_comes(w: World) -> None:
    given = await w.owned_by_bystander("a")
    await w.write(w.bystander, given, 1, ["e0"])
    w.sure["a"] = ["e0"]
    _reader(w)
    w.arm()
    pending = w.subject.start(lambda hf: hf._open.run(w.reader.more()))
    for number in (2, 3):
        await w.write(w.bystander, given, number, [f"e{number}"])
        w.sure["a"].append(f"e{number}")
    await w.settle(w.bystander, given, 4, [], "completed")
    seen = list(await pending)
    seen += await _all_events(w)
    assert [event.data for event in seen[:-1]] == ["e0", "e2", "e3"]
    assert seen[-1].data["state"] == "completed"


OWNING = {
    f.__name__: f
    for f in (
        take, take_many, take_nothing, take_what_was_lost, write_events, write_a_checkpoint, write_a_step,
        settle_completed, settle_failed, settle_stopped, settle_returned, settle_uncounted,
        settle_while_stopping, settle_with_one_that_waits, flags, read_what_is_stored, read_what_comes,
    )
}  # fmt: skip
