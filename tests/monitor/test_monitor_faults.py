"""At every step of every operation of a monitor: reply dropped, connection cut, silence, caller cancelled, a request
that is executed after its repeat.

Then: no change is lost, none is twice in a queue, each subscriber hears each change once and in order, messages that
come again are the same, and what the caller was told is true.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from monitor_desk import Desk, Desks
from monitor_faults import EAR, OPERATIONS, WINDOW, WITH_WINDOW, LatePlan, World

from holdfast import HoldfastError, Indeterminate, Unavailable
from holdfast.engine.scripts import Scripts
from holdfast.monitor import flows
from support.faults import FAULTS, every_pair, every_step
from support.mutants import Edited

QUICK = {"call_timeout": 0.3, "retry_for": 2.0}
TOLD = (Indeterminate, Unavailable, asyncio.CancelledError, KeyboardInterrupt)
ALL = (*FAULTS, "late")


class EditedAndMoved(Edited):
    """The scripts of the moved clock with a bug in them."""

    def __init__(self, edit: Any, moved: Scripts) -> None:
        super().__init__([edit])
        self._moved = moved

    def read(self, room: str, name: str) -> str | None:
        return self._moved.read(room, name) if name == "_time" else super().read(room, name)


class Stage:
    """The clock and the bystander of many runs; each run has a subject of its own."""

    def __init__(self, desks: Desks, operation: str, edit: Any = None) -> None:
        self.desks, self.operation = desks, operation
        self.server: redis.Redis = desks.server
        self.clock = desks.drive()
        if edit is not None:
            self.clock.scripts = EditedAndMoved(edit, self.clock.scripts)
        self.options = {"window": WINDOW} if operation in WITH_WINDOW else {}
        self._by: Desk | None = None

    async def by(self) -> Desk:
        if self._by is None:
            self._by = await self.desks.desk(**self.options)
        return self._by

    async def run(self, plan: LatePlan, **settings: Any) -> bool:
        """One run of the operation with one plan. Answers whether the plan was met."""
        self.server.flushall()
        self.clock.move(0)
        by, subject = await self.by(), await self.desks.desk({**QUICK, **settings}, **self.options)
        await by.enlist(EAR)
        world = World(subject, by, self.server, self.clock, plan)
        try:
            await self._checked(world, plan)
        finally:
            plan.faults = {}
            await subject.actor.stop()
            self.desks._actors.remove(subject.actor)
            await self.desks.close_client(subject.hf)
            self.server.flushall()
        return bool(plan.hits)

    async def _checked(self, world: World, plan: LatePlan) -> None:
        try:
            try:
                await OPERATIONS[self.operation](world)
            except TOLD as told:
                world.error = plan.told = told
            plan.faults = {}
            if world.error is not None and world.again is not None:
                await world.again()  # whoever gets an error repeats it
            world.no_doubles()
            world.all_end()
            if self.operation in WITH_WINDOW:
                world.clock.move(WINDOW)
                await world.by.settle()
                assert (await world.by.settle())[0] == 0
            await world.finish()
            await world.check()
            if self.operation.startswith("observe"):
                expected = {"observe_first": 1, "observe_changed": 2, "observe_unchanged": 1, "observe_many": 4}
                assert len(world.log()) == expected.get(self.operation, 4), "a change too many, or too few"
        except AssertionError as problem:
            told_to = f"{self.operation} with {plan.hits}, which ended with {world.error!r}"
            raise AssertionError(f"{told_to}: {problem}") from problem


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_single_fault(quick: Desks, operation: str):
    stage = Stage(quick, operation)
    # What an operation does is the same for both twins; how a caller is interrupted is not.
    for fault in ALL if quick.api == "async" else ("reply dropped", "cancel before", "cancel after"):
        steps = 0
        for faults in every_step(fault):
            if not await stage.run(LatePlan(faults, quick.cancel)):
                break
            steps += 1
        assert steps >= 1


PAIRS = (("reply dropped", "reply dropped"), ("reply dropped", "cancel after"), ("late", "reply dropped"),
         ("reply dropped", "late"), ("silent", "cancel after"))  # fmt: skip


@pytest.mark.parametrize("operation", ["observe_changed", "observe_many", "pump", "take", "told", "dead", "replay"])
async def test_every_pair_of_faults(hands: Desks, operation: str):
    stage = Stage(hands, operation)

    async def run(faults: dict[int, str]) -> int:
        plan = LatePlan(faults, hands.cancel)
        await stage.run(plan)
        return len(plan.hits)

    for pair in PAIRS:
        assert await every_pair(run, *pair, longest=3) >= 1


class Always(dict[int, str]):
    def __init__(self, fault: str) -> None:
        self._fault = fault

    def get(self, key: int, default: Any = None) -> Any:
        return self._fault


@pytest.mark.parametrize("operation", ["observe_changed", "pump", "told", "dead", "replay", "settle"])
async def test_a_fault_that_stays_is_told_truthfully(hands: Desks, operation: str):
    """Cut every time: surely not done. No reply every time: nobody can know."""
    stage = Stage(hands, operation)
    for fault, kind in (("cut before", Unavailable), ("silent", Indeterminate), ("reply dropped", Indeterminate)):
        plan = LatePlan(Always(fault), hands.cancel)
        assert await stage.run(plan, retry_for=0.1, call_timeout=0.1)
        assert isinstance(plan.told, kind), f"{operation} with {fault}: {plan.told!r}"


BUGS: dict[str, tuple[str, str, Any]] = {
    "a repeated pump fills the queues twice": (
        "pump", "reply dropped", ("monitor/pump", "if now_at ~= ARGV[4] or", "if"),
    ),
    "one whose time was over ends what another tells": (
        "too_late", "reply dropped", ("monitor/done", "if token ~= ARGV[3] then return {'not_held'} end", ""),
    ),
    "a repeated end is not known": (
        "told", "reply dropped", ("monitor/done", "if ended == ARGV[3] then return {'settled', 0} end", ""),
    ),
    "a repeated observation is not known": (
        "observe_changed", "reply dropped",
        ("monitor/observe", "if same and string.sub(text, 1, 8) == ARGV[2]", "if false"),
    ),
    "who was taken is taken for good": (
        "take", "cancel after",
        ("monitor/take", "  call('ZADD', list, now + lease, who)\n", "  call('ZREM', list, who)\n"),
    ),
    "a message grows while it is told": (
        "told", "cancel before",
        ("monitor/take", "  if count == 0 then\n    count, attempt", "  if true then\n    count, attempt"),
    ),
    "a dead letter stays where it was": (
        "dead", "silent", ("monitor/done", "if outcome ~= 'later' then call('LTRIM', queue, known(count), -1) end", ""),
    ),
    "a replay keeps the letter": (
        "replay", "reply dropped", ("monitor/replay", "call('XDEL', KEYS[1], ARGV[2])\n", ""),
    ),
}  # fmt: skip
_AGAIN = ("monitor/pump", "if now_at == ARGV[5] and ARGV[4] ~= ARGV[5] then return {'settled', 0} end", "")


@pytest.mark.parametrize("bug", BUGS)
async def test_each_safeguard_is_needed(hands: Desks, bug: str, monkeypatch: pytest.MonkeyPatch):
    """The same check, with a bug put back, fails."""
    operation, fault, edit = BUGS[bug]
    if operation == "pump":  # two lines guard it
        monkeypatch.setattr(EditedAndMoved, "__init__", _both)
    stage = Stage(hands, operation, edit)

    async def checked() -> None:
        for step in (0, 0, 1):  # the first time the server may not know the changed script yet
            await stage.run(LatePlan({step: fault}, hands.cancel))

    with pytest.raises((AssertionError, HoldfastError)):
        await asyncio.wait_for(checked(), 20)


def _both(self: EditedAndMoved, edit: Any, moved: Scripts) -> None:
    Edited.__init__(self, [edit, _AGAIN])
    self._moved = moved


async def test_a_take_whose_reply_was_lost_comes_again_as_the_same_message(hands: Desks):
    """Nobody knows who was taken: when the time is over it is taken anew, and is what it was."""
    server, clock = hands.server, hands.drive()
    subject, by = await hands.desk(QUICK), await hands.desk()
    plan = LatePlan({0: "reply dropped"}, hands.cancel)
    world = World(subject, by, server, clock, plan)
    await by.enlist(EAR)
    await world.queued(0, 1)
    world.arm()
    found = await subject.take(calls=("ear",))
    assert len(plan.hits) == 1
    before = {name: server.hget(f"hf:{{monitor.venues}}:d:{name}", "count") for name in ("ear", "east")}
    await world.queued(2)
    clock.move(flows.MARGIN + 20)
    later = {one.subscriber: one for one in (await by.take(calls=("ear",))).tellings}
    for one in found.tellings:
        assert later[one.subscriber].first == one.first
    for name, telling in later.items():
        assert telling.number == int(before[name] or telling.number)
