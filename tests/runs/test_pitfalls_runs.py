"""PITFALLS 31 and 36 for runs: owners that die, and who is active. Each check holds, and fails with the bug put back.

Stops and ends are in test_pitfalls_run_stops.py, events in test_pitfalls_run_events.py."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from run_crew import Held
from run_pitfalls import agent, claimed, dead, hand, state

from holdfast import RunActive, RunGone
from holdfast.engine.flow import Flow
from holdfast.runs import flows
from holdfast.runs.spec import RunSpec
from support.backends import Backends
from support.conditions import until
from support.mutants import Case, Pitfalls, World, fails, holds, lua, must, patch, settled

cases = Pitfalls()


# -- 31: the worker dies --------------------------------------------------------------------------------------------

_NOT_OWNED = "(state == RUNNING or state == STOPPING) and deadline > now"
FOR_A_DAY = lua("runs/_give", "now + lease, lease, now", "now + 86400000, 86400000, now")
STEAL_REFUSED = lua("runs/_record", _NOT_OWNED, "state == RUNNING or state == STOPPING")


@cases.pitfall(31, lock_lives_for_a_day=FOR_A_DAY, stale_steal_refused=STEAL_REFUSED)
async def a_redelivered_job_takes_over_the_run_of_a_dead_worker(world: World):
    one, two = await agent(world), await agent(world)
    await dead(one)
    assert await claimed(two) is None
    run = await until(
        lambda: claimed(two), within=2, what="PITFALL 31: the redelivered job sees the lock and leaves; a takeover"
    )
    assert run.attempt == 2


@cases.pitfall(
    31,
    lock_lives_for_a_day=FOR_A_DAY,
    stale_steal_refused=STEAL_REFUSED,
    nobody_looks_for_lost_ones=lua("runs/take", "sweep(", "tostring(", "runs/sweep", "sweep()\n", "\n"),
)
async def a_resumable_run_of_a_dead_worker_goes_on_in_another(world: World):
    log: list[Any] = []
    one, two = Held("one", log=log), Held("two", log=log)
    first = await hand(world, one, lease=0.4, resumable=True)
    await first.agent.start("r")
    await until(lambda: log)
    one.runs[0]._given.hold.abandoned = True
    first.hf._core.mailbox.workers.clear()
    await hand(world, two, lease=0.4, resumable=True)
    await until(lambda: len(log) == 2, within=2.5, what="PITFALL 31: the run is 'running' for ever; a second hand-out")
    assert log[1][1] == "r"
    assert log[1][2] > 1


@cases.pitfall(
    31,
    lock_lives_for_a_day=FOR_A_DAY,
    record_is_believed=lua("runs/look", "judge()", ""),
)
async def nothing_says_running_for_ever(world: World):
    one, two = await agent(world, max_attempts=1), await agent(world)
    await dead(one)

    async def over() -> bool:
        return await state(two) == "failed"

    await until(over, within=1.5, what="PITFALL 31: the run says 'running' after its owner died; its end")
    assert (await two.get("r")).reason == "worker lost"


@cases.pitfall(31, only_who_works_sweeps=lua("runs/sweep", "sweep()\n", "\n"))
async def a_list_does_not_show_dead_runs_as_running(world: World):
    one, two = await agent(world, max_attempts=1), await agent(world)
    await dead(one)

    async def over() -> bool:
        return not await two.list(state="running") and await two.count(state="running") == 0

    await until(over, within=1.5, what="PITFALL 31: the list says 'running' after the owner died; none")


@cases.pitfall(
    31, dead_one_keeps_the_slot=lua("runs/_enter", "judge()", "owned()", "runs/_enter", "sweep()", "owned()")
)
async def a_dead_owner_does_not_keep_the_slot_of_its_key(world: World):
    one, two = await agent(world, max_attempts=1), await agent(world)
    await dead(one, key="k")

    async def started() -> bool:
        with contextlib.suppress(RunActive):
            return (await two.start("new", key="k")).state == "queued"
        return False

    await until(started, within=1.5, what="PITFALL 31: nobody can start a run of the key any more; a start")


@cases.pitfall(31, for_ever_again=lua("runs/_move", "attempt - free >= tries", "false"))
async def a_run_that_kills_its_workers_is_not_handed_out_for_ever(world: World):
    log: list[int] = []

    async def deadly(run: Any) -> None:
        log.append(run.attempt)
        run._given.hold.abandoned = True
        await asyncio.Event().wait()

    hf = await world.client(sweep=600.0, drain=0.0)
    made = hf.runs("agent", lease=0.1, max_attempts=2)
    hf.runner(made, resumable=True)(deadly)
    world.start(hf.work())
    await made.start("r")

    async def over() -> bool:
        return len(log) > 2 or await state(made) == "failed"

    await until(over, within=5)
    assert log == [1, 2], "PITFALL 31: a run that kills its workers is handed out for ever"


# -- 36: who is active ----------------------------------------------------------------------------------------------

_start = flows.start


def _look_then_insert(core: Any, spec: Any, run: Any, data: Any, key: Any, conflict: str) -> Flow[Any]:
    found = yield from flows.list_runs(core, spec, None, key, None, False, 10)
    active = [one for one in found if not one.over]
    if active:
        raise RunActive("wait, or stop it first", run=active[0])
    return (yield from _start(core, spec, run, data, key, conflict))


def _two_calls(world: World) -> None:
    world.patch.setattr(flows, "start", _look_then_insert)
    world.edits += [("runs/start", "if held >= most or waiting > 0 then", "if false then")]


@cases.pitfall(36, look_then_insert=_two_calls)
async def of_many_that_start_at_once_one_is_active(world: World):
    clients = [await agent(world) for _ in range(4)]
    results = await asyncio.gather(
        *(one.start(f"r{number}", key="k") for number, one in enumerate(clients * 2)), return_exceptions=True
    )
    started = [run for run in results if not isinstance(run, BaseException)]
    assert len(started) == 1, f"PITFALL 36: {len(started)} runs of one key are active at once"


_FAIL_ALL = """for _, run in ipairs(call('ZRANGE', base .. 'is:running', 0, -1)) do
  if read(run) then finish(FAILED, 'worker shut down', '') end
end
return {'left'}"""


@cases.pitfall(36, shutdown_fails_all=lua("runs/leave", "return {'left'}", _FAIL_ALL))
async def a_shutdown_leaves_the_runs_of_others_alone(world: World):
    one, two = Held(), Held()
    first = await hand(world, one, concurrency=1)
    await first.agent.start("mine")
    await until(lambda: one.log)
    second = await hand(world, two, concurrency=1)
    await second.agent.start("other")
    await until(lambda: two.log)
    await first.stop()
    other = await second.agent.get("other")
    assert (other.state, two.cancelled) == ("running", []), (
        "PITFALL 36: a shutdown has ended the run of another process"
    )
    two.go.set()
    assert (await second.ended("other")).state == "completed", "PITFALL 36: a shutdown has ended another one's run"


_init = RunSpec.__init__


def _one_place(self: RunSpec, core: Any, name: str, **options: Any) -> None:
    _init(self, core, "all", **options)
    self.name = name


@cases.pitfall(36, kinds_share_a_place=patch(RunSpec, "__init__", _one_place))
async def cleaning_up_one_kind_leaves_another_alone(world: World):
    hf = await world.client()
    agents, flows_ = hf.runs("agent"), hf.runs("workflow", kind="workflow")
    mine = await agents.claim("r", key="k")
    other = await must(flows_.claim("r", key="k"), "PITFALL 36: another kind's run is in the way")
    async with mine:
        pass
    await agents.stop_all("k")
    await settled(hf)
    assert await state(flows_) == "running", "PITFALL 36: cleaning up has ended another kind's run"
    assert not other.lost, "PITFALL 36: cleaning up has taken another kind's lock"


@cases.pitfall(
    36, key_forgotten=lua("runs/_move", "call('ZREM', base .. 'a:' .. key, id)", "call('UNLINK', base .. 'a:' .. key)")
)
async def the_end_of_one_run_frees_one_slot(world: World):
    hf = await world.client()
    runs = hf.runs("agent", slots=2)
    first, _ = await runs.claim("a", key="k"), await runs.claim("b", key="k")
    async with first:
        pass
    await runs.start("c", key="k")
    why = "PITFALL 36: cleaning up after one run has freed the slot of another"
    assert await claimed(runs, "d", key="k") is None, why


async def test_a_run_that_was_never_there_is_not_running(backends: Backends):
    """The checks above ask for states: one that is asked in vain must not pass for any."""
    async with World(backends) as world:
        with pytest.raises(RunGone):
            await state(await agent(world))


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
