"""PITFALLS 32 and 33 for runs: a stop is never lost, and an end is final. Each check fails with the bug put back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from run_crew import Held, never
from run_pitfalls import agent, dead, hand, state

from holdfast import Holdfast, HoldfastError, LeaseLost, RunStopped
from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, Send, Sleep
from holdfast.engine.keeper import Hold
from holdfast.runs import flows, owning, record
from holdfast.runs import worker as worker_module
from holdfast.runs.runs import Runs
from holdfast.runs.worker import RunWorker
from support.backends import Backends
from support.conditions import until
from support.mutants import Case, Pitfalls, World, fails, holds, lua, patch

cases = Pitfalls()


# -- 32: stop -------------------------------------------------------------------------------------------------------


async def deaf(self: RunWorker) -> None:
    await asyncio.Event().wait()


def _message_only(world: World) -> None:
    """Stop is a message and nothing else: nobody asks, and no answer tells."""
    world.patch.setattr(RunWorker, "_watch_stops", deaf)
    world.edits += [("runs/renew", "stop_at > 0 and 2 or 1", "1")]


@cases.pitfall(32, only_a_message=_message_only)
async def a_stop_whose_message_is_lost_is_not_lost(world: World):
    held = Held()
    first = await hand(world, held)
    await first.agent.start("r")
    await until(lambda: held.log)
    first.deafen()
    await first.agent.stop("r")
    await until(
        lambda: held.cancelled, within=2.5, what="PITFALL 32: the stop was only a message, and is lost; its end"
    )


def _stop_after_the_reply(hf: Holdfast, runs: Runs) -> None:
    """When the claim is executed and before its reply is seen here, the run is stopped, and the message is here."""
    core, sha = hf._core, hf._core.scripts.get("runs/claim").sha
    told: list[str] = []
    real, listener = hf._open.run, core.mailbox.on_stop
    core.mailbox.on_stop = lambda token, reason: (listener(token, reason), told.append(token))

    def around(flow: Flow[Any]) -> Flow[Any]:
        send: Any = None
        while True:
            try:
                effect = flow.send(send)
            except StopIteration as stop:
                return stop.value
            send = yield effect
            if isinstance(effect, Send) and sha in effect.payload and isinstance(send, list):
                yield from flows.stop(core, runs._spec, "r", "at once")
                while not told:
                    yield Sleep(0.005)

    hf._open.run = lambda flow: real(around(flow))


def _no_early_stops(core: Core, token: str, reason: str) -> None:
    hold = core.holds.get(token)
    if hold is not None:
        hold.ask_to_stop()


@cases.pitfall(32, nobody_was_there_yet=patch(Core, "_told_to_stop", _no_early_stops))
async def a_stop_that_is_faster_than_the_reply_is_not_missed(world: World):
    hf = await world.client()
    runs = hf.runs("agent", lease=30)
    _stop_after_the_reply(hf, runs)
    run = await runs.claim("r")
    await until(
        lambda: run.stopping,
        within=0.4,
        what="PITFALL 32: the stop came before anybody was there to hear it; its sight",
    )


@cases.pitfall(
    32, not_in_the_record=lua("runs/_halt", "if stop_at == 0 then", "if false then"),
)  # fmt: skip
async def a_stop_survives_the_owner(world: World):
    one, two = await agent(world), await agent(world)
    await dead(one)
    await two.stop("r", "enough")

    async def judged() -> bool:
        return await state(two) not in ("running", "stopping")

    await until(judged, within=2)
    assert await state(two) == "stopped", "PITFALL 32: the stop died with the process that was told"


@cases.pitfall(32, only_when_somebody_runs_it=lua("runs/_halt", "finish(STOPPED, reason, '')", "owned()"))
async def a_stop_before_the_start_is_not_lost(world: World):
    held = Held()
    held.go.set()
    client = await agent(world)
    await client.start("r")
    await client.stop("r")
    first = await hand(world, held)
    await first.agent.start("other")
    await first.ended("other")
    assert held.log == ["other"], "PITFALL 32: the stop came before the start and was lost"


@cases.pitfall(32, seen_between_outputs=patch(Hold, "watch", lambda hold, callback: lambda: None))
async def a_stop_is_seen_in_the_middle_of_an_await(world: World):
    held = Held()
    first = await hand(world, held)
    await first.agent.start("r")
    await until(lambda: held.log)
    await first.agent.stop("r")
    await until(lambda: held.cancelled, within=1.5, what="PITFALL 32: a stop is seen only between outputs; its sight")


_flags = owning.flags


def _error_is_a_stop(core: Any, spec: Any, held: Any, active: Any) -> Flow[None]:
    try:
        yield from _flags(core, spec, held, active)
    except HoldfastError:
        for hold in held:
            hold.ask_to_stop()


def _unknown_is_a_stop(world: World) -> None:
    world.patch.setattr(owning, "flags", _error_is_a_stop)


@cases.pitfall(32, failure_taken_for_stop=_unknown_is_a_stop)
async def a_look_for_stops_that_fails_stops_nobody(world: World):
    world.patch.setattr(worker_module, "STOP_CHECK", 0.05)
    held = Held(result=1)
    first = await hand(world, held)
    core = first.hf._core
    real, broken = core.scripts.get, core.scripts.get("locks/inspect")
    world.patch.setattr(core.scripts, "get", lambda name: broken if name == "runs/flags" else real(name))
    await first.agent.start("r")
    await until(lambda: held.log)
    await never(lambda: held.cancelled, 0.3, "PITFALL 32: a stop-checker that fails has stopped a healthy run")
    held.go.set()
    assert (await first.ended("r")).state == "completed"


# -- 33: the end is final -------------------------------------------------------------------------------------------


@cases.pitfall(33, completed_over_stopped=lua("runs/settle", "if stop_at > 0 then", "if false then"))
async def what_was_stopped_does_not_complete(world: World):
    one, two = await agent(world), await agent(world)
    run = await one.claim("r")
    asked = await two.stop("r")
    with contextlib.suppress(RunStopped):
        async with run:
            run.result = "late"
    ended = await two.get("r")
    assert (asked.state, ended.state) == ("stopping", "stopped"), "PITFALL 33: a stopped run has completed"


async def late_end(runs: Runs, hf: Holdfast, run: Any) -> None:
    """The end of an owner that does not know that its time is over."""
    with contextlib.suppress(LeaseLost):
        flow = owning._settle(hf._core, runs._spec, run._given.place, run._given.hold.token, 1, b"", "completed", "",
                             b"", 0.0, 0.0)  # fmt: skip
        await hf._open.run(flow)


@cases.pitfall(
    33,
    owner_not_compared=lua("runs/_record", "return token == holder and owned()", "return true"),
    end_not_final=lua("runs/settle", "if not mine(ARGV[3]) then", "if false then"),
)
async def an_owner_that_comes_back_does_not_rewrite_the_end(world: World):
    hf = await world.client()
    runs = hf.runs("agent", max_attempts=1)
    run = await dead(runs)

    async def over() -> bool:
        return await state(runs) == "failed"

    await until(over, within=3)
    await late_end(runs, hf, run)
    assert await state(runs) == "failed", "PITFALL 33: failed, and then completed by who was lost"


@cases.pitfall(33, stop_reopens=lua("runs/_halt", "elseif state < COMPLETED then", "else"))
async def a_stop_does_not_rewrite_the_end(world: World):
    one, two = await agent(world), await agent(world)
    async with await one.claim("r"):
        pass
    before = await two.get("r")
    await two.stop("r")
    assert await two.get("r") == before, "PITFALL 33: a stop has changed how a run ended"


ALL_COMPLETED = ("queued", "running", "completed", "completed", "completed", "completed")


@cases.pitfall(33, everything_is_completed=patch(record, "STATES", ALL_COMPLETED))
async def each_state_is_told_as_it_is(world: World):
    one, two = await agent(world), await agent(world)
    runs = {name: await one.claim(name) for name in ("completed", "failed", "stopped", "stopping")}
    for name in ("stopped", "stopping"):
        await two.stop(name)
    for name in ("completed", "failed", "stopped"):
        with contextlib.suppress(RunStopped, ValueError):
            async with runs[name]:
                if name == "failed":
                    raise ValueError(name)
    told = [await state(two, name) for name in runs]
    assert told == list(runs), f"PITFALL 33: every state that is not 'running' is told as completed: {told}"


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
