"""Gates: which states are worth telling, line by line, with a clock that the test moves. Every server, both twins."""

from __future__ import annotations

from typing import Any

import pytest
from once_desk import Desks, Driven, GateDesk

from holdfast import Decision

MINUTE = 60.0
WINDOW = 5 * MINUTE

A, B, C = ({"free": letter} for letter in "abc")


async def told_of(gate: GateDesk) -> list[Any]:
    """Everything that is due, told."""
    notices = await gate.due()
    assert all([await gate.told(notice) for notice in notices])
    return [notice.state for notice in notices]


# -- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trailing", [True, False], ids=["trailing", "not trailing"])
async def test_the_table_line_by_line(desks: Desks, trailing: bool):
    """Whether A was known just before or for long."""
    clock = desks.drive()
    one, two = await desks.two()
    for known_for in (0.0, 10 * MINUTE):
        gates = [desk.gate(f"known for {known_for}", WINDOW, trailing=trailing) for desk in (one, two)]
        await the_table(clock, gates, trailing, known_for)


async def the_table(clock: Driven, gates: list[GateDesk], trailing: bool, known_for: float) -> None:
    assert await gates[0].check("venue", A) == Decision(True, "first", None)
    clock.move(known_for)
    # T0 A → B: told. T1 B → A: told. T2 A → B: within five minutes, not told. By whoever asks.
    assert await gates[0].check("venue", B) == Decision(True, "changed", A)
    clock.move(MINUTE)
    assert await gates[1].check("venue", A) == Decision(True, "changed", B)
    clock.move(MINUTE)
    assert await gates[0].check("venue", B) == Decision(False, "repeated", A)
    # Nothing is due before the window of B is over, and it is exactly B then: what was told last was A.
    clock.move(3 * MINUTE - 0.001)
    assert await gates[1].due() == []
    clock.move(0.001)
    notices = await gates[1].due()
    assert [(n.key, n.state, n.previous) for n in notices] == ([("venue", B, A)] if trailing else [])
    for notice in notices:
        assert await gates[1].due() == []  # it is out
        assert await gates[0].told(notice)
        assert await gates[0].told(notice)  # a repeat changes nothing
    clock.move(MINUTE)
    assert await gates[0].due() == []
    # T6 B → C: told.
    assert await gates[1].check("venue", C) == Decision(True, "changed", B)
    clock.move(WINDOW)
    assert await gates[0].due() == []


async def test_a_state_that_stays_is_told_once(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    assert await gate.check("venue", A) == Decision(True, "first", None)
    for _ in range(5):
        clock.move(2 * MINUTE)
        assert await gate.check("venue", A) == Decision(False, "unchanged", A)
    assert await gate.check("venue", B) == Decision(True, "changed", A)
    for _ in range(5):
        clock.move(2 * MINUTE)
        assert await gate.check("venue", B) == Decision(False, "unchanged", B)
    assert await gate.due() == []


@pytest.mark.parametrize(("after", "reason"), [(WINDOW - 0.001, "repeated"), (WINDOW, "changed")])
async def test_a_window_is_closed_to_the_millisecond(desks: Desks, after: float, reason: str):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    assert await gate.reasons("venue", A, B, A) == ["first", "changed", "changed"]
    clock.move(after)
    assert await gate.reasons("venue", B) == [reason]


async def test_each_thing_and_each_gate_by_itself(desks: Desks):
    clock = desks.drive()
    desk = await desks.desk()
    one, other = desk.gate("one", WINDOW), desk.gate("other", WINDOW)
    for gate in (one, other):
        for key in ("x", ("x",), 1, "1"):
            assert await gate.reasons(key, A, B, A, B) == ["first", "changed", "changed", "repeated"]
    assert await desk.once("one", "x")  # ids are something else
    clock.move(WINDOW)
    notices = await one.due()
    assert {notice.key for notice in notices} == {"x", ("x",), 1, "1"}
    assert all([await one.told(notice) for notice in notices])
    assert len(await other.due()) == 4


# -- the trailing notice --------------------------------------------------------------------------------------------


async def test_nothing_is_due_when_the_thing_is_back_in_the_state_that_was_told_last(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    assert await gate.reasons("venue", A, B, A, B, A) == ["first", "changed", "changed", "repeated", "repeated"]
    clock.move(WINDOW)
    assert await gate.due() == []
    clock.move(WINDOW)
    assert await gate.due() == []


async def test_what_is_due_is_the_state_at_the_end(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    assert await gate.reasons("venue", A, B) == ["first", "changed"]
    clock.move(MINUTE)
    assert await gate.reasons("venue", A) == ["changed"]
    clock.move(MINUTE)
    assert await gate.reasons("venue", C) == ["changed"]
    # B, A and C were told at 0, 1 and 2. Now it is B, then A.
    assert await gate.reasons("venue", B, A) == ["repeated", "repeated"]
    clock.move(3 * MINUTE)
    assert await told_of(gate) == []  # the window of B is over, but it is not B any more
    clock.move(MINUTE)
    assert await told_of(gate) == [A]
    assert await told_of(gate) == []
    # and what was told so is within its window now
    assert await gate.reasons("venue", B) == ["changed"]
    clock.move(WINDOW - 1)
    assert await gate.reasons("venue", A) == ["repeated"]


async def test_what_is_handed_out_and_not_told_comes_again(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    await gate.reasons("venue", A, B, A, B)
    clock.move(WINDOW)
    first = await gate.due(lease=30)
    clock.move(29.999)
    assert await gate.due(lease=30) == []
    clock.move(0.001)
    assert await gate.due(lease=30) == first
    assert [await gate.told(notice) for notice in first] == [True]
    clock.move(60)
    assert await gate.due() == []


async def test_a_state_that_is_looked_at_while_it_is_told_is_not_told_twice(desks: Desks):
    clock = desks.drive()
    one, two = await desks.two()
    gate, poller = one.gate(window=WINDOW), two.gate(window=WINDOW)
    await gate.reasons("venue", A, B, A, B)
    clock.move(WINDOW)
    (notice,) = await gate.due()
    # Given a notice that is being told, when others look at the state all the while
    assert await poller.reasons("venue", B, B) == ["unchanged", "unchanged"]
    assert await gate.told(notice)
    assert await poller.reasons("venue", B) == ["unchanged"]
    clock.move(WINDOW)
    assert await gate.due() == []


async def test_who_was_told_something_else_meanwhile_is_put_right(desks: Desks):
    """The state goes back while the notice is out: the subscriber must not be left with the one that it is not."""
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    # B is told at 0, A at 4; then it is B again, which is due at 5
    await gate.reasons("venue", A, B)
    clock.move(4 * MINUTE)
    assert await gate.reasons("venue", A, B) == ["changed", "repeated"]
    clock.move(MINUTE)
    (notice,) = await gate.due(lease=30)
    subscriber = notice.state
    # when it is A before that is known to be told
    assert await gate.reasons("venue", A) == ["repeated"]
    assert await gate.told(notice) is False
    assert subscriber == B
    # expect A to be told at the end of its window
    clock.move(4 * MINUTE)
    assert await told_of(gate) == [A]
    clock.move(WINDOW)
    assert await told_of(gate) == []


async def test_who_was_told_by_a_worker_that_died_is_put_right(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    await gate.reasons("venue", A, B)
    clock.move(4 * MINUTE)
    await gate.reasons("venue", A, B)
    clock.move(MINUTE)
    assert len(await gate.due(lease=30)) == 1  # B is told, and the worker dies before it says so
    assert await gate.reasons("venue", A) == ["repeated"]
    clock.move(4 * MINUTE)
    assert await told_of(gate) == [A]


async def test_one_that_is_told_late_does_not_have_the_last_word(desks: Desks):
    """Another state is told while a notice is out, which may arrive after it."""
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    await gate.reasons("venue", A, B, A, B)
    clock.move(WINDOW)
    (notice,) = await gate.due()
    assert await gate.reasons("venue", C) == ["changed"]
    assert await gate.told(notice) is False
    clock.move(WINDOW)
    assert await told_of(gate) == [C]
    clock.move(WINDOW)
    assert await told_of(gate) == []


async def test_one_that_is_told_very_late_does_not_have_the_last_word(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    await gate.reasons("venue", A, B, A, B)
    clock.move(WINDOW)
    (notice,) = await gate.due()
    assert await gate.reasons("venue", C) == ["changed"]
    clock.move(WINDOW + 1)
    assert await gate.told(notice) is False
    assert await told_of(gate) == [C]
    assert await told_of(gate) == []


async def test_a_late_notice_of_something_known_anew_does_not_have_the_last_word(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    await gate.reasons("venue", A, B, A, B)
    clock.move(WINDOW)
    (notice,) = await gate.due()
    await gate.forget("venue")
    assert await gate.reasons("venue", C) == ["first"]
    assert await gate.told(notice) is False
    assert await told_of(gate) == [C]
    assert await told_of(gate) == []


async def test_a_notice_of_something_forgotten_is_over(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    await gate.reasons("venue", A, B, A, B)
    assert await gate.forget("venue") is True
    assert await gate.forget("venue") is False
    clock.move(WINDOW)
    assert await gate.due() == []
    assert await gate.reasons("venue", B) == ["first"]
    await gate.reasons("venue", A, B, A)
    clock.move(WINDOW)
    (notice,) = await gate.due()
    await gate.forget("venue")
    assert await gate.told(notice) is False
    assert await gate.reasons("venue", A) == ["first"]


async def test_as_many_are_handed_out_as_were_asked_for(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    keys = [f"venue-{number}" for number in range(150)]
    for state in (A, B, A, B):
        await gate.check_many([(key, state) for key in keys])
    clock.move(WINDOW)
    first = await gate.due(10)
    # On a Cluster each shard is asked by itself, for one at least.
    assert len(first) == 10 if desks.backend.kind != "cluster" else len(first) <= 64
    seen = [notice.key for notice in first]
    while more := await gate.due(100):
        seen += [notice.key for notice in more]
    assert sorted(seen) == sorted(keys)


# -- many at once ---------------------------------------------------------------------------------------------------


async def test_many_are_judged_in_order_and_one_that_is_named_twice_in_turn(desks: Desks):
    desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    things = [("x", A), ("y", A), ("x", B), ("x", B), ("z", C), ("x", A), ("y", A), ("x", B)]
    assert [decision.reason for decision in await gate.check_many(things)] == [
        "first", "first", "changed", "unchanged", "first", "changed", "unchanged", "repeated",
    ]  # fmt: skip
    assert await gate.check_many([]) == []
    assert [d.previous for d in await gate.check_many(iter([("x", C), ("y", C)]))] == [B, A]


async def test_a_thousand_at_once(desks: Desks):
    gate = (await desks.desk()).gate(window=WINDOW)
    things = [(("venue", number), {"number": number}) for number in range(1100)]
    assert {decision.reason for decision in await gate.check_many(things)} == {"first"}
    changed = [(key, {"number": -number} if number % 3 == 0 else state) for number, (key, state) in enumerate(things)]
    decisions = await gate.check_many(changed)
    assert [d.notify for d in decisions] == [n % 3 == 0 and n > 0 for n in range(1100)]
    assert [d.previous for d in decisions] == [state for _, state in things]


async def test_more_states_than_are_remembered_are_rather_told_twice_than_never(desks: Desks):
    clock = desks.drive()
    gate = (await desks.desk()).gate(window=WINDOW)
    states = [f"state-{number}" for number in range(40)]
    assert await gate.reasons("venue", "start", *states) == ["first", *["changed"] * 40]
    # The newest are known to be told, and the oldest are told again.
    assert await gate.reasons("venue", states[30]) == ["repeated"]
    assert await gate.reasons("venue", states[0]) == ["changed"]
    # What is not told is made up for at the end of its window.
    assert await gate.reasons("venue", states[35]) == ["repeated"]
    clock.move(WINDOW)
    assert await told_of(gate) == [states[35]]
