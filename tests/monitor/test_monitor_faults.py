"""At every step of every operation of a monitor: reply dropped, connection cut, silence, caller cancelled, a request that
is executed after its repeat.

Then: no change is lost, none is twice in a queue, each subscriber hears each change once and in order, messages that
come again are the same, and what the caller was told is true.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from monitor_desk import Desks
from monitor_faults import OPERATIONS, WINDOW, WITH_WINDOW, EAR, LatePlan, World

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


async def run_with(
    desks: Desks, server: redis.Redis, plan: LatePlan, operation: str, edit: Any = None, **settings: Any
) -> bool:
    """One run of one operation with one plan. Answers whether the plan was met."""
    server.flushall()
    clock = desks.drive()
    if edit is not None:
        clock.scripts = EditedAndMoved(edit, clock.scripts)
    options = {"window": WINDOW} if operation in WITH_WINDOW else {}
    subject, by = await desks.desk({**QUICK, **settings}, **options), await desks.desk(**options)
    await by.enlist(EAR)
    world = World(subject, by, server, clock, plan)
    error: BaseException | None = None
    try:
        try:
            await OPERATIONS[operation](world)
        except TOLD as told:
            error = told
        plan.faults = {}
        if error is not None and world.again is not None:
            await world.again()  # whoever gets an error repeats it
        world.no_doubles()
        if operation in WITH_WINDOW:
            clock.move(WINDOW)
            await by.settle()
            assert (await by.settle())[0] == 0
        await world.finish()
        await world.check()
        if operation.startswith("observe"):
            expected = {"observe_first": 1, "observe_changed": 2, "observe_unchanged": 1, "observe_many": 4}
            assert len(world.log()) == expected.get(operation, 4), "a change too many, or too few"
    except AssertionError as problem:
        raise AssertionError(f"{operation} with {plan.hits}, which ended with {error!r}: {problem}") from problem
    finally:
        plan.faults = {}
        for desk in (subject, by):
            await desk.actor.stop()
            desks._actors.remove(desk.actor)
            await desks.close_client(desk.hf)
        server.flushall()
    return bool(plan.hits)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_single_fault(quick: Desks, operation: str):
    server = quick.server
    for fault in ALL:
        steps = 0
        for faults in every_step(fault):
            if not await run_with(quick, server, LatePlan(faults, quick.cancel), operation):
                break
            steps += 1
        assert steps >= 1


PAIRS = (("reply dropped", "reply dropped"), ("reply dropped", "cancel after"), ("late", "reply dropped"),
         ("reply dropped", "late"), ("silent", "cancel after"))  # fmt: skip


@pytest.mark.parametrize("operation", ["observe_changed", "observe_many", "pump", "take", "told", "dead", "replay"])
async def test_every_pair_of_faults(hands: Desks, operation: str):
    server = hands.server

    async def run(faults: dict[int, str]) -> int:
        plan = LatePlan(faults, hands.cancel)
        await run_with(hands, server, plan, operation)
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
    server = hands.server
    for fault, kind in (("cut before", Unavailable), ("silent", Indeterminate), ("reply dropped", Indeterminate)):
        plan = LatePlan(Always(fault), hands.cancel)
        seen: list[BaseException] = []
        real = OPERATIONS[operation]

        async def noted(world: World, real: Any = real, seen: list[BaseException] = seen) -> None:
            try:
                await real(world)
            except TOLD as error:
                seen.append(error)
                raise

        OPERATIONS[operation] = noted
        try:
            assert await run_with(hands, server, plan, operation, retry_for=0.1, call_timeout=0.1)
        finally:
            OPERATIONS[operation] = real
        assert isinstance(seen[0], kind), f"{operation} with {fault}: {seen[0]!r}"


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
        "observe_changed", "reply dropped", ("monitor/observe", "if same and string.sub(text, 1, 8) == ARGV[2]", "if false"),
    ),
    "who was taken is taken for good": (
        "take", "cancel after", ("monitor/take", "  call('ZADD', list, now + lease, who)\n", "  call('ZREM', list, who)\n"),
    ),
    "a message grows while it is told": (
        "told", "cancel before", ("monitor/take", "  if count == 0 then\n    count, attempt", "  if true then\n    count, attempt"),
    ),
    "a dead letter stays where it was": (
        "dead", "silent", ("monitor/done", "if outcome ~= 'later' then call('LTRIM', queue, known(count), -1) end", ""),
    ),
    "a replay keeps the letter": ("replay", "reply dropped", ("monitor/replay", "call('XDEL', KEYS[1], ARGV[2])\n", "")),
}  # fmt: skip
_AGAIN = ("monitor/pump", "if now_at == ARGV[5] and ARGV[4] ~= ARGV[5] then return {'settled', 0} end", "")


@pytest.mark.parametrize("bug", BUGS)
async def test_each_safeguard_is_needed(hands: Desks, bug: str, monkeypatch: pytest.MonkeyPatch):
    """The same check, with a bug put back, fails."""
    operation, fault, edit = BUGS[bug]
    if operation == "pump":  # two lines guard it
        monkeypatch.setattr(EditedAndMoved, "__init__", _both)
    server = hands.server

    async def checked() -> None:
        for step in (0, 0, 1):  # the first time the server may not know the changed script yet
            await run_with(hands, server, LatePlan({step: fault}, hands.cancel), operation, edit)

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
