"""Every operation on runs: each sets up, arms the faults, acts, and says what must be so if it returned."""

from __future__ import annotations

import pytest
from run_fault_owning import OWNING, becomes, state_of
from run_fault_world import World

from holdfast import RunActive, RunEnded, RunGone, RunMismatch
from holdfast.runs import flows

# -- start ----------------------------------------------------------------------------------------------------------


async def start(w: World) -> None:
    becomes(w, "a", "queued")
    w.arm()
    run = await w.does("start", "a", {"x": 1}, key="k")
    assert (run.id, run.state, run.input, run.attempt, run.waits) == ("a", "queued", {"x": 1}, 0, False)


async def start_again(w: World) -> None:
    await w.by("start", "a", {"x": 1}, key="k")
    w.arm()
    run = await w.does("start", "a", {"x": 1}, key="k", conflict="replace")
    assert (run.id, run.state) == ("a", "queued")


async def start_with_another_input(w: World) -> None:
    await w.by("start", "a", {"x": 1})
    w.arm()
    with pytest.raises(RunMismatch) as told:
        await w.does("start", "a", {"x": 2})
    assert told.value.run.input == {"x": 1}


async def start_rejected(w: World) -> None:
    await w.owned_by_bystander("a", key="k")
    w.arm()
    with pytest.raises(RunActive) as told:
        await w.does("start", "b", key="k", conflict="reject")
    assert told.value.run.id == "a"
    assert "b" not in w.view().runs


async def start_queued(w: World) -> None:
    await w.owned_by_bystander("a", key="k")
    becomes(w, "b", "queued")
    w.arm()
    run = await w.does("start", "b", key="k", conflict="queue")
    assert (run.id, run.state, run.waits) == ("b", "queued", True)


async def start_replacing(w: World) -> None:
    await w.owned_by_bystander("a", key="k")
    w.done = lambda view: (state_of(view, "a"), state_of(view, "b")) == ("stopping", "queued")
    w.arm()
    run = await w.does("start", "b", key="k", conflict="replace")
    assert (run.id, run.state, run.waits) == ("b", "queued", True)


async def start_replacing_a_queued_one(w: World) -> None:
    await w.by("start", "a", key="k")
    w.done = lambda view: (state_of(view, "a"), state_of(view, "b")) == ("stopped", "queued")
    w.arm()
    run = await w.does("start", "b", key="k", conflict="replace")
    assert (run.id, run.waits) == ("b", False)


async def start_joining(w: World) -> None:
    await w.owned_by_bystander("a", key="k")
    w.arm()
    run = await w.does("start", "b", key="k", conflict="join")
    assert (run.id, run.state) == ("a", "running")
    assert "b" not in w.view().runs


async def start_where_the_owner_was_lost(w: World) -> None:
    await w.expired("a", key="k")
    becomes(w, "b", "queued")
    w.arm()
    run = await w.does("start", "b", key="k", conflict="queue")
    assert run.waits


# -- claim ----------------------------------------------------------------------------------------------------------


async def claim_new(w: World) -> None:
    w.arm()
    w.given = await w.claim(w.subject, "a", key="k", data=[1])
    assert (w.given.attempt, w.given.key, w.given.kind) == (1, "k", "agent")


async def claim_queued(w: World) -> None:
    await w.by("start", "a", [1], key="k")
    w.arm()
    w.given = await w.claim(w.subject, "a")
    assert (w.given.attempt, w.given.key) == (1, "k")


async def claim_after_its_owner_was_lost(w: World) -> None:
    await w.expired("a", key="k")
    w.arm()
    w.given = await w.claim(w.subject, "a", key="k")
    assert w.given.attempt == 2


async def claim_what_is_owned(w: World) -> None:
    given = await w.owned_by_bystander("a")
    w.arm()
    with pytest.raises(RunActive) as told:
        await w.claim(w.subject, "a")
    assert (told.value.run.id, told.value.run.fence) == ("a", given.hold.fence)


async def claim_what_is_over(w: World) -> None:
    await w.by("start", "a")
    await w.by("stop", "a", "no more")
    w.arm()
    with pytest.raises(RunEnded) as told:
        await w.claim(w.subject, "a")
    assert (told.value.run.state, told.value.run.reason) == ("stopped", "no more")


# -- look and stop --------------------------------------------------------------------------------------------------


async def look(w: World) -> None:
    await w.owned_by_bystander("a", key="k")
    w.arm()
    run = await w.does("get", "a")
    assert (run.id, run.state, run.key, run.attempt) == ("a", "running", "k", 1)


async def look_at_a_lost_one(w: World) -> None:
    await w.expired("a")
    w.arm()
    assert (await w.does("get", "a")).state == "queued"


async def look_at_nothing(w: World) -> None:
    w.arm()
    with pytest.raises(RunGone):
        await w.does("get", "a")


async def stop_queued(w: World) -> None:
    await w.by("start", "a", key="k")
    await w.by("start", "b", key="k", conflict="queue")
    becomes(w, "a", "stopped")
    w.arm()
    run = await w.does("stop", "a", "enough")
    assert (run.state, run.reason) == ("stopped", "enough")
    assert not (await w.by("get", "b")).waits


async def stop_running(w: World) -> None:
    given = await w.owned_by_bystander("a")
    becomes(w, "a", "stopping")
    w.arm()
    run = await w.does("stop", "a", "enough")
    assert (run.state, run.stop_reason) == ("stopping", "enough")
    assert await w.settle(w.bystander, given, 1, [], "completed") == "stopped"
    w.done = None


async def stop_what_is_over(w: World) -> None:
    given = await w.owned_by_bystander("a")
    await w.settle(w.bystander, given, 1, [], "completed")
    w.arm()
    run = await w.does("stop", "a", "enough")
    assert (run.state, run.stop_reason) == ("completed", "")


async def stop_all(w: World) -> None:
    await w.owned_by_bystander("a", key="k")
    await w.by("start", "b", key="k", conflict="queue")
    await w.by("start", "c", key="other")
    w.done = lambda view: [state_of(view, run) for run in "abc"] == ["stopping", "stopped", "queued"]
    w.arm()
    assert await w.does("stop_all", "k", "enough") == 2


async def listed(w: World) -> None:
    await w.owned_by_bystander("a", key="k")
    await w.by("start", "b", key="k", conflict="queue")
    await w.expired("c")
    w.arm()
    runs = {run.id: run.state for run in await w.does("list")}
    assert runs == {"a": "running", "b": "queued", "c": "queued"}


async def counted(w: World) -> None:
    await w.owned_by_bystander("a", key="k")
    await w.by("start", "b", key="k", conflict="queue")
    w.arm()
    totals = await w.does("totals")
    assert {state: count for state, count in totals.items() if count} == {"queued": 1, "running": 1}
    assert await w.does("count", key="k") == 2


async def sweep(w: World) -> None:
    await w.expired("a")
    becomes(w, "a", "queued")
    w.arm()
    assert await w.flow(w.subject, flows.sweep) == -1  # nothing is owned any more


ASKING = {
    f.__name__: f
    for f in (
        start, start_again, start_with_another_input, start_rejected, start_queued, start_replacing,
        start_replacing_a_queued_one, start_joining, start_where_the_owner_was_lost, claim_new, claim_queued,
        claim_after_its_owner_was_lost, claim_what_is_owned, claim_what_is_over, look, look_at_a_lost_one,
        look_at_nothing, stop_queued, stop_running, stop_what_is_over, stop_all, listed, counted, sweep,
    )
}  # fmt: skip
OPERATIONS = {**ASKING, **OWNING}
