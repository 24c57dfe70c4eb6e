"""The plan of a demonstration: drawn from a number, and whole."""

from __future__ import annotations

import pytest

from holdfast.cli.demo_plan import CAPACITY, NEXT, PRODUCERS, WORST, draw


def test_the_same_number_draws_the_same_plan() -> None:
    one, same, other = draw(7, 4, 15, True), draw(7, 4, 15, True), draw(8, 4, 15, True)

    assert one == same
    assert one.digest == same.digest
    assert one.digest != other.digest
    for part in ("appends", "runs", "strikes"):
        assert getattr(one, part) != getattr(other, part)


@pytest.mark.parametrize(("processes", "seconds", "kill"), [(5, 15, True), (4, 14, True), (4, 15, False)])
def test_another_size_is_another_plan(processes: int, seconds: float, kill: bool) -> None:
    assert draw(7, processes, seconds, kill).digest != draw(7, 4, 15, True).digest


@pytest.mark.parametrize("seed", range(5))
def test_messages_are_numbered_without_gaps_and_some_are_too_many_at_once(seed: int) -> None:
    plan = draw(seed, 4, 3, True)

    numbers = [number for one in plan.appends for number in range(one.first, one.first + one.size)]
    assert numbers == list(range(plan.messages))
    assert [one.at for one in plan.appends] == sorted(one.at for one in plan.appends)
    assert any(one.size > CAPACITY for one in plan.appends), "something must be dropped"


def test_the_producers_do_all_of_it_between_them() -> None:
    plan = draw(3, 4, 3, True)

    shares = [plan.share(number) for number in range(PRODUCERS)]
    assert sorted(one for appends, _ in shares for one in appends) == sorted(plan.appends)
    assert sorted(one for _, runs in shares for one in runs) == sorted(plan.runs)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_strike_comes_up_and_none_comes_late(seed: int) -> None:
    plan = draw(seed, 3, 10, True)

    assert {one[1::2] for one in plan.strikes} == {*WORST, *NEXT}
    assert all(0 < one.at < plan.seconds and 0 <= one.worker < plan.processes for one in plan.strikes)
    short = draw(seed, 2, 1, True)
    assert {one[1::2] for one in short.strikes} == set(WORST), "a short one has what finds most"


def test_without_kills_nobody_is_struck_and_the_rest_is_the_same() -> None:
    plan, calm = draw(7, 4, 15, True), draw(7, 4, 15, False)

    assert calm.strikes == ()
    assert (calm.appends, calm.runs) == (plan.appends, plan.runs)
    assert calm.command == "holdfast demo --seed 7 --processes 4 --seconds 15 --no-kill"
