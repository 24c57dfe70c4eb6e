"""The account of a demonstration: it adds up, and each thing that may be wrong is found alone."""

from __future__ import annotations

from collections import Counter as Counts
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from holdfast import BufferTotals, Event, Fenced, Run
from holdfast.cli.demo_account import Account, add_counts, add_messages, add_run, as_told, percentile
from holdfast.cli.demo_counter import Counter
from holdfast.cli.demo_tally import Tally


def told(*lines: dict[str, Any]) -> Tally:
    tally = Tally()
    for line in lines:
        tally.hear(line)
    return tally


def totals(**counts: int) -> BufferTotals:
    known = {item.name: 0 for item in fields(BufferTotals)}
    return BufferTotals(**{**known, "counts": {name.replace("_", "."): number for name, number in counts.items()}})


TEN = {"did": "appended", "first": 0, "count": 10, "dropped": {}}


# -- messages ---------------------------------------------------------------------------------------------------------


def messages(found: dict[int, int], waiting: int = 0, unknown: int = 0, **counts: int) -> Account:
    """Ten were accepted, from 0 to 9."""
    account, lines = Account(), [TEN]
    if unknown:
        lines.append({"did": "unknown", "first": 10, "count": unknown})
    add_messages(account, told(*lines), Counts(found), totals(**counts), waiting)
    return account


def test_all_absorbed() -> None:
    account = messages(dict.fromkeys(range(10), 1))

    assert (account.accepted, account.absorbed, account.faults) == (10, 10, [])


def test_dropped_ones_are_neither_lost_nor_forgotten() -> None:
    account = messages(dict.fromkeys(range(7), 1), dropped_capacity=2, dropped_age=1, dropped_pair_age=5)

    assert account.dropped == {"capacity": 2, "age": 1}
    assert account.clean


@pytest.mark.parametrize(
    ("found", "more", "faults"),
    [
        (range(8), {}, ["messages lost: 2"]),
        (range(8), {"dropped_capacity": 1}, ["messages lost: 1"]),
        (range(8), {"dropped_capacity": 3}, ["messages counted that were not there: 1"]),
        (range(8), {"waiting": 2}, ["messages still waiting: 2"]),
        (range(8), {"dead": 2}, ["messages in dead letters: 2"]),
        ([*range(10), 3, 3], {}, ["messages with more than one effect: 2"]),
        (range(11), {}, ["messages that nobody was told went in: 1"]),
        ([*range(9), 0], {}, ["messages lost: 1", "messages with more than one effect: 1"]),
    ],
)
def test_each_mistake_is_found(found: Any, more: dict[str, int], faults: list[str]) -> None:
    account = messages(dict(Counts(found)), **more)

    assert account.faults == faults
    assert not account.clean


@pytest.mark.parametrize("more", [{}, {"dropped_capacity": 1}])
def test_what_got_no_answer_may_be_there_or_not(more: dict[str, int]) -> None:
    assert messages(dict.fromkeys(range(12), 1), unknown=2).clean
    assert messages(dict.fromkeys(range(10), 1), unknown=2, **more).clean


def test_a_demonstration_of_nothing_shows_nothing() -> None:
    account = Account()
    add_messages(account, told(), Counts(), totals(), 0)

    assert account.faults == ["no message went in"]


def test_the_first_report_of_a_message_gives_its_latency() -> None:
    tally = told(
        TEN,
        {"did": "absorbed", "messages": [[0, 0.5], [1, 0.1]]},
        {"did": "absorbed", "messages": [[0, 9.0], [2, 0.2]]},
    )
    account = Account()
    add_messages(account, tally, Counts(range(10)), totals(), 0)

    assert (account.p50, account.p99) == (0.2, 0.5)


def test_percentiles() -> None:
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile([4.0], 0.99) == 4.0
    assert Account().as_dict()["p99"] is None, "JSON has no NaN"


# -- runs -------------------------------------------------------------------------------------------------------------


def run(state: str, attempt: int = 1) -> Run:
    known = dict.fromkeys((item.name for item in fields(Run)), None)
    return Run(**{**known, "state": state, "attempt": attempt})


def events(*numbers: int, end: bool = True) -> list[Event]:
    found = [Event(f"1000-{at}", {"n": number}, 1.0) for at, number in enumerate(numbers)]
    return [*found, Event("1001-0", {"state": "completed"}, 1.0, "end")] if end else found


def judged(one: Run | None, seen: list[Event]) -> list[str]:
    account = Account(accepted=1)
    add_run(account, one, 3, seen)
    return account.faults


WRONG_EVENTS = ["runs with events missing, twice or out of order: 1"]


@pytest.mark.parametrize(
    ("one", "seen", "faults"),
    [
        (run("completed"), events(1, 2, 3), []),
        (run("completed"), events(1, 3), WRONG_EVENTS),
        (run("completed"), events(1, 2, 2, 3), WRONG_EVENTS),
        (run("completed"), events(2, 1, 3), WRONG_EVENTS),
        (run("completed"), events(1, 2, 3, end=False), WRONG_EVENTS),
        (run("completed"), [*events(1, 2, 3), *events()], WRONG_EVENTS),
        (run("failed"), events(1), ["runs failed: 1"]),
        (run("running"), [], ["runs that did not end: 1"]),
        (None, [], ["runs that did not end: 1"]),
    ],
)
def test_runs(one: Run | None, seen: list[Event], faults: list[str]) -> None:
    assert judged(one, seen) == faults


def test_what_the_next_owner_repeats_counts_once() -> None:
    # Given an owner that was lost after its second event, and had saved after the first
    first, second, third = events(1, 2, 3, end=False)
    resumed = Event("1000-5", {"attempt": 2, "after": first.id}, 1.0, "resumed")
    again = [Event("1002-0", {"n": 2}, 1.0), Event("1002-1", {"n": 3}, 1.0)]

    assert [event.data["n"] for event in as_told([first, second, resumed, *again])] == [1, 2, 3]
    assert judged(run("completed", 2), [first, second, resumed, *again, events()[0]]) == []
    # and where nobody says that they are repeated, they are doubled
    assert judged(run("completed", 2), [first, second, *again, events()[0]]) == WRONG_EVENTS
    assert third.data["n"] == 3


# -- counters ---------------------------------------------------------------------------------------------------------


def counted(values: dict[int, int], writes: list[tuple[int, int]], said: list[tuple[int, int]]) -> int:
    account = Account()
    tally = told(*({"did": "counted", "counter": number, "value": value} for number, value in said))
    add_counts(account, tally, values, writes)
    return account.counts_wrong


def test_counts() -> None:
    assert counted({0: 2, 1: 1}, [(0, 1), (1, 1), (0, 2)], [(0, 1), (1, 1), (0, 2)]) == 0
    assert counted({0: 2}, [(0, 1), (0, 2)], [(0, 1)]) == 0, "one was killed before it could say so"
    assert counted({0: 1}, [(0, 1), (0, 1)], []) == 1, "two have read the same"
    assert counted({0: 1}, [(0, 1)], [(0, 1), (0, 1)]) == 1, "two were told that it is theirs"
    assert counted({0: 1}, [(0, 1), (0, 2)], []) == 1, "one was written over"
    assert counted({0: 3}, [(0, 1), (0, 3)], []) == 1, "one is missing"


def test_a_late_holder_is_refused_unless_the_fence_is_not_looked_at(tmp_path: Path) -> None:
    # Given a holder that has read, and the next one that has read after it
    counter = Counter(tmp_path / "counters.db")
    counter.create()
    late, next_one = counter.read(0, 1), counter.read(0, 2)

    # when the first one writes, it is refused although the second has not written yet
    with pytest.raises(Fenced):
        counter.write(0, late + 1, 1)
    counter.write(0, next_one + 1, 2)
    assert (counter.values(), counter.writes()) == ({0: 1}, [(0, 1)])

    # and without the fence both write the same
    counter.write(0, late + 1, None)
    assert counted(counter.values(), counter.writes(), []) == 1


def test_a_process_that_ended_by_itself_is_a_fault() -> None:
    assert Account(accepted=1, crashed=["worker 1 ended with 1"]).faults == ["processes that ended by themselves: 1"]
