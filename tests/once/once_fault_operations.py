"""Every operation of the dedup room, as a fault meets it, and what must be so afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

from once_desk import Desk, Desks

from holdfast import Decision, LeaseLost
from support.conditions import until
from support.faults import Plan, install

LEASE = 0.4
INTERRUPTED = object()
"""What a caller has who was interrupted: nothing."""


class Story:
    """A subject whose operations meet the fault, and a witness who looks at what is so then."""

    def __init__(self, desks: Desks, subject: Desk, witness: Desk) -> None:
        self.desks, self.subject, self.witness = desks, subject, witness
        self.plan = Plan({}, desks.cancel)
        install(subject.hf, self.plan)
        self._numbers = itertools.count()
        self.id = ""

    def begin(self, faults: dict[int, str]) -> None:
        """A new run, with an id of its own."""
        self.plan.step, self.plan.hits, self.plan.faults = 0, [], faults
        self.id = f"id-{next(self._numbers)}"

    async def meets(self, work: Any) -> Any:
        """What the caller is answered; any other error than an interruption is one too many."""
        try:
            return await work
        except self.desks.cancel:
            return INTERRUPTED

    async def settle(self) -> None:
        """No more faults, and nothing under way in the background."""
        self.plan.faults = {}
        await self.desks.settled(self.subject)

    @property
    def where(self) -> str:
        return f"{self.id} with {self.plan.hits}"


async def once(story: Story) -> None:
    told = await story.meets(story.subject.once("s", story.id))
    await story.settle()
    assert told in (True, INTERRUPTED), story.where
    # Who was told yes is the only one; what nobody was told of is new.
    assert await story.witness.once("s", story.id) == (told is INTERRUPTED), story.where


async def filter_new(story: Story) -> None:
    ids = [(story.id, number) for number in range(5)]
    await story.witness.once("s", ids[2])
    told = await story.meets(story.subject.filter_new("s", [*ids, *ids]))
    await story.settle()
    rest = [one for one in ids if one != ids[2]]
    assert told in (rest, INTERRUPTED), story.where
    assert await story.witness.filter_new("s", ids) == (rest if told is INTERRUPTED else []), story.where


async def forget(story: Story) -> None:
    await story.witness.once("s", story.id)
    told = await story.meets(story.subject.forget("s", story.id, "nothing"))
    await story.settle()
    assert told in (0, 1, INTERRUPTED), story.where  # 0: the repeat found nothing any more
    if told is not INTERRUPTED:
        assert await story.witness.once("s", story.id), story.where


async def free(story: Story) -> str:
    """How the id can be had in the end: at once, or when a lease is over."""
    states: list[str] = []

    async def so() -> bool:
        states.append(await story.witness.state("s", story.id))
        return states[-1] != "busy"

    await until(so, within=LEASE + 2, what=f"an end of {story.where}")
    return states[-1]


async def claim(story: Story) -> None:
    ran: list[int] = []
    told = await story.meets(story.subject.body(lambda one: ran.append(1) or one.state, "s", story.id, lease=LEASE))
    await story.settle()
    assert told in ("mine", INTERRUPTED), story.where
    # It is done if its body ran, also where its caller was interrupted while that was written down; else it is free.
    assert await free(story) == ("done" if ran else "mine"), story.where
    assert not story.subject.hf._core.holds, story.where


async def claim_that_fails(story: Story) -> None:
    def fail(_: Any) -> None:
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        await story.meets(story.subject.body(fail, "s", story.id, lease=LEASE))
    await story.settle()
    assert await free(story) == "mine", story.where
    assert not story.subject.hf._core.holds, story.where


async def claim_that_waits(story: Story) -> None:
    """Another one has it, and is done once the subject waits."""
    other = await story.witness.begin("s", story.id, lease=30)
    told = story.subject.body(None, "s", story.id, lease=LEASE, wait=20)
    sleeping = story.subject.hf._core.mailbox._slots
    await until(lambda: told.done() or any(map(callable, sleeping.values())))
    await story.witness.on(other, "confirm")
    assert await story.meets(told) in ("done", INTERRUPTED), story.where
    await story.settle()
    assert await free(story) == "done", story.where
    assert not story.subject.hf._core.feeds, story.where


async def claim_that_is_handed_over(story: Story) -> None:
    """Another one has it, and gives it back once the subject waits."""
    other = await story.witness.begin("s", story.id, lease=30)
    ran: list[int] = []
    told = story.subject.body(lambda one: ran.append(1) or one.state, "s", story.id, lease=LEASE, wait=20)
    sleeping = story.subject.hf._core.mailbox._slots
    await until(lambda: told.done() or any(map(callable, sleeping.values())))
    await story.witness.on(other, "release")
    assert await story.meets(told) in ("mine", INTERRUPTED), story.where
    await story.settle()
    assert await free(story) == ("done" if ran else "mine"), story.where


async def confirm(story: Story) -> None:
    """Of a claim that was taken away: never done by this one, whatever happens to its requests."""
    story.plan.faults, faults = {}, story.plan.faults
    mine = await story.subject.begin("s", story.id, lease=30)
    await story.witness.forget("s", story.id)
    other = await story.witness.begin("s", story.id, lease=30)
    story.plan.step, story.plan.faults = 0, faults
    try:
        told = await story.meets(story.subject.on(mine, "confirm"))
    except LeaseLost:
        told = INTERRUPTED
    assert told is INTERRUPTED, f"confirmed somebody else's: {story.where}"
    await story.settle()
    assert await story.witness.state("s", story.id) == "busy", story.where
    await story.witness.on(other, "confirm")


async def call(story: Story) -> None:
    made: list[str] = []

    def charge(key: str) -> dict[str, int]:
        made.append(key)
        return {"receipt": len(made)}

    told = await story.meets(story.subject.calls(charge, space="charge", lease=LEASE)(story.id))
    await story.settle()
    assert told in ({"receipt": 1}, INTERRUPTED), story.where
    # Everybody gets the result of the one call there is, also when its caller was interrupted afterwards.
    assert await story.witness.calls(charge, space="charge", lease=LEASE)(story.id) == {"receipt": 1}, story.where
    assert made == [story.id], story.where


async def call_that_fails(story: Story) -> None:
    made: list[str] = []

    def charge(key: str) -> str:
        made.append(key)
        if len(made) == 1:
            raise ZeroDivisionError
        return "went through"

    try:
        told = await story.meets(story.subject.calls(charge, space="charge", lease=LEASE)(story.id))
        assert told is INTERRUPTED, story.where
    except ZeroDivisionError:
        assert made, story.where
    await story.settle()
    made = made or [""]
    assert await story.witness.calls(charge, space="charge", lease=LEASE)(story.id) == "went through", story.where


async def check(story: Story) -> None:
    gate, other = (desk.gate("g", 600.0) for desk in (story.subject, story.witness))
    await other.reasons(story.id, "A", "B", "A")
    told = await story.meets(gate.check(story.id, "C"))
    await story.settle()
    assert told in (Decision(True, "changed", "A"), INTERRUPTED), story.where
    # No notice is lost, and none is doubled.
    again = await other.check(story.id, "C")
    assert again.notify == (told is INTERRUPTED), f"{again}: {story.where}"
    assert (await other.check(story.id, "C")).reason == "unchanged", story.where
    assert [n for n in await other.due() if n.key == story.id] == [], story.where


async def check_first(story: Story) -> None:
    gate, other = (desk.gate("g", 600.0, trailing=False) for desk in (story.subject, story.witness))
    told = await story.meets(gate.check(story.id, "A"))
    await story.settle()
    assert told in (Decision(True, "first", None), INTERRUPTED), story.where
    assert (await other.check(story.id, "A")).notify == (told is INTERRUPTED), story.where


async def check_repeated(story: Story) -> None:
    gate, other = (desk.gate("g", 600.0) for desk in (story.subject, story.witness))
    await other.reasons(story.id, "A", "B", "A")
    told = await story.meets(gate.check(story.id, "B"))
    await story.settle()
    assert told in (Decision(False, "repeated", "A"), INTERRUPTED), story.where
    assert not (await other.check(story.id, "B")).notify, story.where
    # It is made up for at the end of the window, once.
    assert len([key for key in story.desks.lives() if ":due:g" in key]) >= 1, story.where


async def check_many(story: Story) -> None:
    gate, other = (desk.gate("g", 600.0) for desk in (story.subject, story.witness))
    x, y, z = ((story.id, name) for name in "xyz")
    await other.check_many([(x, "A"), (y, "A")])
    told = await story.meets(gate.check_many([(x, "B"), (y, "B"), (x, "C"), (z, "A"), (x, "B"), (y, "B")]))
    await story.settle()
    reasons = told if told is INTERRUPTED else [decision.reason for decision in told]
    assert reasons in (["changed", "changed", "changed", "first", "repeated", "unchanged"], INTERRUPTED), story.where
    again = [(await other.check(key, state)).notify for key, state in ((x, "B"), (y, "B"), (z, "A"), (x, "C"))]
    assert again == [told is INTERRUPTED] * 4, f"{again}: {story.where}"


async def notices(story: Story) -> None:
    """What is due is told at least once, and what was known to be told is not told again."""
    gate, other = (desk.gate(f"g-{story.id}", 0.05) for desk in (story.subject, story.witness))
    while await other.reasons("k", "A", "B", "A", "B") != ["first", "changed", "changed", "repeated"]:
        await other.forget("k")
    await until(lambda: other.due(lease=0.001), what="the end of the window")
    await asyncio.sleep(0.005)
    heard: list[Any] = []
    found = await story.meets(gate.due(lease=LEASE))
    assert found or story.plan.hits, story.where  # a reply that was lost had it: it comes again
    if found and found is not INTERRUPTED:
        heard.append(await story.meets(gate.told(found[0])))
    await story.settle()
    assert heard in ([], [True], [INTERRUPTED]), story.where

    async def comes() -> list[Any]:
        return await other.due(lease=LEASE)

    if heard != [True]:
        if heard == []:
            (notice,) = await until(comes, within=LEASE + 2, what=f"the notice again: {story.where}")
            assert (notice.key, notice.state, notice.previous) == ("k", "B", "A"), story.where
            assert await other.told(notice), story.where
        return
    assert await comes() == [], story.where
    assert not [key for key in story.desks.lives() if key.endswith(f":due:g-{story.id}")], story.where


OPERATIONS = {
    f.__name__: f
    for f in (
        once, filter_new, forget, claim, claim_that_fails, claim_that_waits, claim_that_is_handed_over, confirm, call,
        call_that_fails, check, check_first, check_repeated, check_many, notices,
    )
}  # fmt: skip
