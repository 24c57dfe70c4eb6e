"""A short run of `python -m chaos monitor`: all must fit together, and must not where a safeguard is out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chaos.checker.monitor import Account, Evidence, Fact, Told, check
from chaos.faults.schedule import draw
from chaos.monitor import KINDS, MonitorPlan, run
from chaos.traffic import venues as v
from chaos.traffic.observer import SAFEGUARDS, Careless

from holdfast.monitor.record import Snapshot

SHORT = {"workers": 3, "venues": 100, "steps": 5, "seconds": 8.0}


@pytest.mark.timeout(240)
def test_nodes_killed_and_frozen_and_bad_receivers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    outcome = run(MonitorPlan(schedule=1, **SHORT), tmp_path)

    account = outcome.account
    assert account.clean, account.examples[:20]
    assert {"kill worker", "pause worker", "restart server"} <= set(outcome.faults)
    happened = account.happened
    assert happened["changes in the history"] > 300, happened
    assert happened["changes told"] > 8 * 300, happened
    assert happened["came again: answer lost"] > 0, happened
    assert happened["dead letters replayed"] > 0, happened
    assert happened["observed: older"] > 0, happened


@pytest.mark.timeout(240)
def test_where_older_observations_are_taken_the_same_shows_it(tmp_path: Path) -> None:
    plan = MonitorPlan(guard="off", without="older", only="none", workers=2, venues=40, steps=5, seconds=2.0)
    outcome = run(plan, tmp_path)

    assert not outcome.account.clean
    assert outcome.account.violations["history"] > 0, outcome
    assert outcome.account.violations["final"] > 0, outcome


def test_every_safeguard_that_can_be_taken_out_is_there() -> None:
    for name, edits in SAFEGUARDS.items():
        careless = Careless([name])
        for place, old, _ in edits:
            assert old not in (careless.read("monitor", place) or old)


def test_the_schedule_is_the_same_for_the_same_number() -> None:
    for server, kinds in KINDS.items():
        assert {fault.kind for fault in draw(7, server, 60, kinds=KINDS)} == set(kinds)
    made = v.items(1, 50, 4, 10.0)
    assert made == v.items(1, 50, 4, 10.0) != v.items(2, 50, 4, 10.0)
    assert sum(len(item.rows) for item in made) == 50 * 4
    first, second = (v.arrivals(1, node, made, 10.0) for node in (0, 1))
    assert first == v.arrivals(1, 0, made, 10.0) != second
    assert {item for _, item in first} == {item for _, item in second} == {item.number for item in made}
    assert len(first) > len(made), "some come twice"


# -- the checker ------------------------------------------------------------------------------------------------------

VENUE = 7  # one that every subscriber wants
ITEMS = [
    v.Item(step, v.SITE, (v.Row(VENUE, v.key_of(VENUE), {"price": price}, 100.0 + step),), 0.0)
    for step, price in enumerate((1, 2, 1, 9))
]
ROWS = [item.rows[0] for item in ITEMS]
KINDS_OF = ("first", "changed", "changed", "changed")
HISTORY = [
    Snapshot(f"{step:04}", v.SITE, row.key, kind, row.state, row.observed_at)
    for step, (row, kind) in enumerate(zip(ROWS, KINDS_OF, strict=True))
]


def moved(step: int) -> Snapshot:
    """At another time than it was."""
    return replace(HISTORY[step], observed_at=99.0)


def fact(step: int, **other: Any) -> Fact:
    before = ROWS[step - 1].state if step else None
    one = Fact(f"{step:04}", v.SITE, v.key_of(VENUE), KINDS_OF[step], before, ROWS[step].state, ROWS[step].observed_at)
    return one._replace(**other)


def message(key: str, *facts: Fact, at: float = 0.0, attempt: int = 1, **more: Any) -> Told:
    return Told(key, attempt, json.dumps(facts), facts, at, **more)


GOOD = [message("a", fact(0), fact(1)), message("b", fact(2), at=10.0), message("c", fact(3), at=20.0)]
PICKY = [message("a", fact(1)), message("b", fact(2), at=10.0), message("c", fact(3), at=20.0)]


def account_of(told: list[Told] | None = None, picky: list[Told] | None = None, **other: Any) -> Account:
    """Everybody was told well, but for `steady` and `picky` where that is given."""
    heard: dict[str, list[Told]] = dict.fromkeys(v.EVERYBODY, GOOD)
    heard["steady"], heard["picky"] = told or GOOD, picky or PICKY
    facts: dict[str, Any] = {
        "items": ITEMS, "truth": {VENUE: ROWS}, "history": {VENUE: HISTORY}, "known": {VENUE: ROWS[-1].state},
        "journal": [], "told": heard, "faults": 1, **other,
    }  # fmt: skip
    return check(Evidence(**facts))


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"told": [*GOOD, GOOD[2]]},  # its sender was killed
        {"told": [GOOD[0]._replace(answered=False), *GOOD], "faults": 0},
        {"told": [GOOD[0]._replace(attempt=2), GOOD[0], *GOOD[1:]], "faults": 0},  # taken late
        {"told": [GOOD[0], GOOD[2], GOOD[1]], "replayed": {"steady": {"0002"}}},
        {"told": [*GOOD, message("d", fact(2))], "replayed": {"steady": {"0002"}}},
        {"journal": [{"what": "observed", "answers": [[0, 1, "changed", "0001"], [1, 2, "older", None]]}]},
        {"delivered": {"steady": ["a", "b", "c"]}},
    ],
)  # fmt: skip
def test_the_checker_accepts_what_fits(found: dict[str, Any]) -> None:
    account = account_of(**found)
    assert account.clean, account.examples


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("lost", {"told": [GOOD[0], GOOD[2]]}),
        ("outdated", {"told": GOOD[:2]}),
        ("twice", {"told": [*GOOD, message("d", fact(3))]}),
        ("bodies", {"told": [*GOOD, message("c", fact(2))]}),
        ("repeats", {"told": [*GOOD, GOOD[2]._replace(attempt=2)], "faults": 0}),
        ("sequence", {"told": [GOOD[0], GOOD[2], GOOD[1]]}),
        ("order", {"told": [GOOD[0], GOOD[2], GOOD[1]]}),
        ("facts", {"told": [message("a", fact(0, after={"price": 9}, observed_at=103.0), fact(1)), *GOOD[1:]]}),
        ("facts", {"told": [message("a", fact(0), fact(1, before=None)), *GOOD[1:]]}),
        ("foreign", {"told": [message("a", fact(0, after={"price": 8}), fact(1)), *GOOD[1:]]}),
        ("unknown", {"told": [*GOOD, message("d", fact(3, id="0009"))]}),
        ("unwanted", {"told": [*GOOD, message("d", fact(3, id="0009", key="nowhere"))]}),
        ("unwanted", {"picky": [message("z", fact(0)), *PICKY]}),
        ("interval", {"picky": [PICKY[0], PICKY[1]._replace(at=0.1), PICKY[2]]}),
        ("signatures", {"told": [GOOD[0]._replace(signed=False), *GOOD[1:]]}),
        ("claims", {"delivered": {"steady": ["d"]}}),
        ("history", {"history": {VENUE: [*HISTORY[:2], moved(2), HISTORY[3]]}}),
        ("history", {"history": {VENUE: [HISTORY[0], *HISTORY[2:]]}}),
        ("history", {"history": {VENUE: HISTORY[1:]}}),
        ("foreign", {"history": {VENUE: [*HISTORY[:3], moved(3)]}}),
        ("final", {"history": {VENUE: HISTORY[:3]}}),
        ("final", {"known": {VENUE: ROWS[0].state}}),
        ("acknowledged", {"journal": [{"what": "observed", "answers": [[0, 1, "changed", "0008"]]}]}),
        ("acknowledged", {"journal": [{"what": "observed", "answers": [[0, 1, "changed", "0002"]]}]}),
        ("dropped", {"journal": [{"what": "dropped", "text": "a change"}]}),
        ("letters", {"letters": 1}),
        ("left", {"left": ["q:steady"]}),
        ("eternal", {"eternal": ["key"]}),
        ("died", {"died": 1}),
    ],
)  # fmt: skip
def test_the_checker_sees_what_does_not_fit(kind: str, found: dict[str, Any]) -> None:
    account = account_of(**found)
    assert account.violations[kind] > 0, account
    assert not account.clean


def test_the_checker_sees_a_page_that_was_processed_twice() -> None:
    pages = [v.Item(0, v.FEED, ITEMS[0].rows, 0.0), *ITEMS[1:]]
    line = {"what": "page", "page": 0, "answers": [["first", "0000"]]}
    assert account_of(items=pages, journal=[line, {**line, "answers": None}]).clean
    assert account_of(items=pages, journal=[line, line]).violations["tasks"] == 1


def test_what_a_failover_forgot_is_counted_and_the_rest_must_fit() -> None:
    forgotten = {"told": [GOOD[0], GOOD[2]], "forgetful": True}
    account = account_of(**forgotten)
    assert account.violations["lost"] > 0
    assert account.clean
    assert not account_of(**forgotten, letters=1).clean
