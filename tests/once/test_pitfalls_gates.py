"""PITFALL 39: which states are told. Each check holds, and fails with the bug put back."""

from __future__ import annotations

from typing import Any

import pytest

from support.backends import Backends
from support.mutants import Case, Pitfalls, World, fails, holds, lua

cases = Pitfalls()

MINUTE = 60_000
LAST_ONE_ONLY = lua(
    "engine/_told",
    "if one[1] ~= digest then kept[#kept + 1] = one end",
    "",
)


def set_clock(world: World, minute: int) -> None:
    world.redis().set("test:clock", minute * MINUTE + 1_000_000_000_000, ex=60)


async def driven(world: World) -> Any:
    """A gate whose clock the check sets."""
    world.edits.append(CLOCK)
    return (await world.client()).gate("venues", 300.0)


async def minutes(world: World, gate: Any, *steps: tuple[int, str]) -> list[bool]:
    """The table: at each minute this state. Answers what was told."""
    told = []
    for minute, state in steps:
        set_clock(world, minute)
        told.append((await gate.check("venue", state)).notify)
    return told


CLOCK = (
    "engine/_time",
    "local time = call('TIME')",
    "local ms = call('GET', 'test:clock')\nlocal time = {(ms - ms % 1000) / 1000, ms % 1000 * 1000}",
)


@cases.pitfall(39, only_the_last_digest_is_kept=LAST_ONE_ONLY)
async def a_state_is_told_once_in_a_window(world: World):
    gate = await driven(world)
    told = await minutes(world, gate, (-1, "A"), (0, "B"), (1, "A"), (2, "B"), (6, "C"))
    assert told == [True, True, True, False, True], f"PITFALL 39: the table says otherwise than {told[1:]}"


@cases.pitfall(
    39,
    nothing_made_up_for=lua("once/gate", "if wait and ARGV[3] == '1' then", "if false then"),
    looked_at_too_early_and_dropped=lua("engine/_told", "wait = at + window - now", "wait = 0"),
)
async def who_was_not_told_is_told_when_the_window_is_over(world: World):
    gate = await driven(world)
    heard = "A"
    for minute, state in ((-1, "A"), (0, "B"), (1, "A"), (2, "B")):
        if (await minutes(world, gate, (minute, state)))[0]:
            heard = state
        assert await gate.due() == [], "PITFALL 39: told before its window is over"
    set_clock(world, 5)
    for notice in await gate.due():
        heard = notice.state
        await gate.told(notice)
    assert heard == "B", f"PITFALL 39: the subscriber is left with {heard}, and it is B"
    assert await gate.due() == [], "PITFALL 39: told again"


@cases.pitfall(39, told_is_believed=lua("once/due", "thing.told = UNKNOWN", "thing.told = thing.told"))
async def who_was_told_by_one_that_died_is_put_right(world: World):
    gate = await driven(world)
    assert await minutes(world, gate, (-1, "A"), (0, "B"), (4, "A"), (4, "B")) == [True, True, True, False]
    set_clock(world, 5)
    (notice,) = await gate.due()
    heard = notice.state  # and its worker dies before it says so
    assert await minutes(world, gate, (6, "A")) == [False]
    set_clock(world, 12)
    for notice in await gate.due():
        heard = notice.state
    assert heard == "A", f"PITFALL 39: the subscriber is left with {heard}, and it is A"


@cases.pitfall(39, late_one_is_passed_over=lua("once/told", "if thing.now ~= ARGV[1] then", "if false then"))
async def one_that_is_told_late_does_not_have_the_last_word(world: World):
    gate = await driven(world)
    await minutes(world, gate, (-1, "A"), (0, "B"), (1, "A"), (2, "B"))
    set_clock(world, 5)
    (notice,) = await gate.due()
    assert await minutes(world, gate, (6, "C")) == [True]
    heard = notice.state  # it comes after C
    await gate.told(notice)
    set_clock(world, 12)
    for notice in await gate.due():
        heard = notice.state
    assert heard == "C", f"PITFALL 39: the subscriber is left with {heard}, and it is C"


@cases.pitfall(39, looked_at_is_told=lua("once/gate", "thing.told == UNTOLD", "thing.told ~= digest"))
async def who_only_looks_does_not_tell_it_twice(world: World):
    gate = await driven(world)
    await minutes(world, gate, (-1, "A"), (0, "B"), (1, "A"), (2, "B"))
    set_clock(world, 5)
    assert len(await gate.due()) == 1
    assert await minutes(world, gate, (5, "B")) == [False], "PITFALL 39: told by a handler, and by who only looked"


@cases.pitfall(
    39,
    op_not_compared=lua("once/gate", "string.sub(text, 1, 8) == ARGV[4] and digest_now(text) == digest", "false"),
)
async def who_was_not_answered_is_told_the_same_again(world: World):
    """Its first request was executed: the repeat must not find that it is unchanged."""
    proxy = world.proxy()
    hf, other = await world.client(proxy.url, call_timeout=0.3), await world.client()
    gate = hf.gate("venues")
    await gate.check("venue", "A")
    proxy.drop_replies(1, match=hf._core.scripts.get("once/gate").sha)
    decision = await gate.check("venue", "B")
    assert proxy.replies_dropped == 1
    assert decision.notify, f"PITFALL 39: it is {decision.reason}, and nobody was told"
    assert not (await other.gate("venues").check("venue", "B")).notify, "PITFALL 39: told twice"


@pytest.mark.parametrize("case", cases.holding())
async def test_it_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_it_fails_with_the_bug(case: Case, backends: Backends):
    await fails(case, backends)
