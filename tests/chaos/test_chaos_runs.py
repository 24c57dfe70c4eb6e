"""Short runs of `python -m chaos runs`: all must fit together, and must not where lost owners may write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chaos.checker.runs import Account, Final, Seen, check
from chaos.faults.schedule import RUN_KINDS, draw
from chaos.history.journal import Journal, entries
from chaos.runs import RunPlan, run
from chaos.traffic.roles import MAX_ATTEMPTS, Role, role


@pytest.mark.timeout(240)
def test_owners_killed_frozen_and_drained_leave_every_run_in_order(tmp_path: Path) -> None:
    outcome = run(RunPlan(schedule=1, workers=4, runs=80, rate=7.0), tmp_path)

    account = outcome.account
    assert set(outcome.faults) == set(RUN_KINDS["single"]), "every kind of fault came up"
    assert account.clean, account.examples[:20]
    happened = account.happened
    assert happened["runs"] == 80
    assert happened["taken over"] > 0, happened
    assert happened["told that it was lost"] > 0, happened
    assert happened["completed"] > 40, happened
    assert happened["stopped"] > 0, happened
    assert happened["events dropped"] > 0, happened
    assert happened["visits"] > 2 * happened["views"], "readers left and came back"


@pytest.mark.timeout(240)
def test_where_lost_owners_may_write_the_same_shows_it(tmp_path: Path) -> None:
    plan = RunPlan(schedule=1, workers=4, runs=40, rate=7.0, only="pause worker", patience=2.0)
    outcome = run(plan._replace(guard="off"), tmp_path)

    assert not outcome.account.clean
    assert outcome.account.violations["fences"] > 0, outcome


@pytest.mark.timeout(240)
@pytest.mark.parametrize("server", ["sentinel", "cluster"])
def test_failovers_leave_what_the_server_has_in_order(tmp_path: Path, server: str) -> None:
    """What the dead primary had not passed on is forgotten; the rest is as consistent as ever."""
    outcome = run(RunPlan(schedule=2, server=server, workers=3, runs=60, rate=6.0), tmp_path)

    account = outcome.account
    assert outcome.faults.get("failover", 0) >= 1
    assert account.clean, account.examples[:20]
    assert account.happened["runs"] >= 45, account


def test_the_schedule_is_the_same_for_the_same_number() -> None:
    for server, kinds in RUN_KINDS.items():
        assert draw(7, server, 60, kinds=RUN_KINDS) == draw(7, server, 60, kinds=RUN_KINDS)
        assert {fault.kind for fault in draw(7, server, 60, kinds=RUN_KINDS)} == set(kinds)
    roles = [role(1, number) for number in range(200)]
    assert roles == [role(1, number) for number in range(200)]
    assert {one.collection for one in roles} == {"agent", "plain", "once"}
    assert {one.conflict for one in roles if one.key} == {"queue", "replace"}


# -- the checker ----------------------------------------------------------------------------------------------------

OLD, NEW = 10, 20
ONE = Role("r0", "agent", None, "reject", {"steps": 1, "events": 2, "seconds": 0, "fails": None}, None)
RESULT = {"n": 2, "values": {"s0": "a"}}


def said(at: int, n: int, attempt: int = 1, fence: int = OLD) -> Seen:
    return Seen(f"{at}-0", "data", {"n": n, "attempt": attempt, "fence": fence})


def resumed(at: int, attempt: int, after: str = "0-0") -> Seen:
    return Seen(f"{at}-0", "resumed", {"attempt": attempt, "after": after})


def ended(at: int, state: str = "completed") -> Seen:
    return Seen(f"{at}-0", "end", {"state": state, "reason": "", "result": RESULT})


def dropped(at: int) -> Seen:
    return Seen(f"{at}-0", "dropped", {"count": 1})


STORED = (said(1, 1), resumed(2, 2), said(3, 1, 2, NEW), said(4, 2, 2, NEW), ended(5))
GOOD: dict[str, Any] = {"state": "completed", "attempt": 2, "fence": NEW, "result": RESULT, "events": STORED}
STEPS: list[dict[str, Any]] = [
    {"what": "ran", "step": "s0", "value": "a", "fence": OLD},
    {"what": "step", "step": "s0", "value": "a", "fence": OLD},
    {"what": "step", "step": "s0", "value": "a", "fence": NEW},
]
UNSEEN: dict[str, Any] = {"dropped": 3, "events": (dropped(3), *STORED[3:])}
"""An attempt began and said something before anybody looked: the second one is all that is known."""
DROPPED: dict[str, Any] = {"dropped": 1, "events": (dropped(1), *STORED[1:])}


def account_of(
    folder: Path,
    lines: list[dict[str, Any]],
    final: dict[str, Any],
    views: dict[str, tuple[Seen, ...]],
    one: Role = ONE,
) -> Account:
    journal = Journal(folder, "worker")
    for line in lines:
        facts = dict(line)
        journal.write(facts.pop("what"), one.id, **facts)
    for by, view in views.items():
        for seen in view:
            journal.write("seen", one.id, by=by, **seen._asdict())
    return check([one], entries(folder), {one.id: Final(**{**GOOD, **final})})


@pytest.mark.parametrize(
    ("final", "views", "lines"),
    [
        ({}, {}, []),
        ({}, {"0": STORED}, [{"what": "stop", "state": "completed"}]),
        (DROPPED, {"0": STORED, "1": (dropped(1), *STORED[1:])}, []),
        (UNSEEN, {"0": UNSEEN["events"]}, []),
        ({}, {}, [{"what": "saved", "n": 1, "fence": OLD}, {"what": "began", "attempt": 2, "fence": NEW, "saved": 1}]),
    ],
)
def test_the_checker_accepts_what_fits(
    tmp_path: Path, final: dict[str, Any], views: dict[str, tuple[Seen, ...]], lines: list[dict[str, Any]]
) -> None:
    account = account_of(tmp_path, [*STEPS, *lines], final, views)
    assert account.clean, account.examples


@pytest.mark.parametrize(
    ("kind", "final", "views", "lines"),
    [
        ("unfinished", {"state": "running"}, {}, []),
        ("contradictions", {}, {}, [{"what": "finished", "state": "failed"}]),
        ("contradictions", {}, {"0": (*STORED[:-1], ended(5, "stopped"))}, []),
        ("ends", {"events": STORED[:-1]}, {}, []),
        ("ends", {"events": (*STORED, ended(6))}, {}, []),
        ("ends", {"events": (*STORED, said(6, 3, 2, NEW))}, {}, []),
        ("ends", {"events": (*STORED[:-1], ended(5, "failed"))}, {}, []),
        ("fences", {"events": (*STORED[:3], said(4, 2), ended(5))}, {}, []),
        ("fences", {"events": (*STORED[:2], said(3, 1), *STORED[3:])}, {}, []),
        ("fences", {"events": (said(1, 1), said(3, 1, 2, NEW), ended(5))}, {}, []),
        ("fences", {"events": (*STORED[:2], resumed(3, 2), *STORED[3:])}, {}, []),
        ("numbers", {"events": (*STORED[:3], ended(5))}, {}, []),
        ("numbers", {"events": (*STORED[:3], said(4, 1, 2, NEW), ended(5))}, {}, []),
        ("numbers", {"events": (said(1, 1), resumed(2, 2, "1-0"), *STORED[2:])}, {}, []),
        ("fences", UNSEEN, {"0": (*STORED[:1], *STORED[3:])}, []),
        ("fences", UNSEEN, {"0": (said(1, 1, 2, 30), dropped(3), *STORED[3:])}, []),
        ("views", {}, {"0": STORED[1:]}, []),
        ("views", {}, {"0": STORED[:-1]}, []),
        ("views", {}, {"0": (STORED[0], STORED[0], *STORED[1:])}, []),
        ("views", {}, {"0": (STORED[1], STORED[0], *STORED[2:])}, []),
        ("views", {}, {"0": (said(1, 7), *STORED[1:])}, []),
        ("views", DROPPED, {"0": STORED, "1": STORED[1:]}, []),
        ("steps", {}, {}, [{"what": "ran", "step": "s0", "value": "b", "fence": NEW}]),
        ("steps", {}, {}, [{"what": "step", "step": "s0", "value": "b", "fence": OLD}]),
        ("steps", {"result": {"n": 2, "values": {"s0": "b"}}}, {}, []),
        ("checkpoints", {}, {}, [
            {"what": "saved", "n": 2, "fence": OLD}, {"what": "began", "attempt": 2, "fence": NEW, "saved": 1},
        ]),
        ("stops", {}, {}, [{"what": "stop", "state": "stopping"}]),
        ("stops", {}, {}, [{"what": "stop", "state": "stopped"}]),
        ("stops", {}, {}, [{"what": "stop", "state": "running"}]),
        ("outcomes", {"state": "stopped"}, {}, []),
        ("outcomes", {"state": "failed", "reason": "worker lost"}, {}, []),
        ("attempts", {"attempt": MAX_ATTEMPTS + 1}, {}, []),
    ],
)  # fmt: skip
def test_the_checker_sees_what_does_not_fit(
    tmp_path: Path, kind: str, final: dict[str, Any], views: dict[str, tuple[Seen, ...]], lines: list[dict[str, Any]]
) -> None:
    account = account_of(tmp_path, [*STEPS, *lines], final, views)
    assert account.violations[kind] > 0, account
    assert not account.clean


def test_the_checker_sees_two_runs_in_one_slot(tmp_path: Path) -> None:
    first, second = (ONE._replace(id=name, key="k", conflict="queue") for name in ("r0", "r1"))
    ordered = {
        "r0": Final(**GOOD, started=1.0, ended=2.0),
        "r1": Final(**{**GOOD, "fence": 30}, started=2.0, ended=3.0),
    }
    overlapping = {**ordered, "r1": ordered["r1"]._replace(started=1.5)}
    steps = [{**line, "run": name} for line in STEPS for name in ordered]
    owners = [
        {"what": "began", "run": name, "attempt": 1, "fence": fence, "saved": 0}
        for name, fence in (("r0", 40), ("r1", 30))
    ]

    assert check([first, second], steps, ordered).clean
    assert check([first, second], steps, overlapping).violations["slots"] == 1
    assert check([first, second], [*steps, *owners], ordered).violations["slots"] == 1


def test_a_run_that_is_begun_twice_though_it_cannot_go_on_is_seen(tmp_path: Path) -> None:
    began = [{"what": "began", "attempt": at, "fence": fence, "saved": 0} for at, fence in ((1, OLD), (2, NEW))]
    account = account_of(tmp_path, [*STEPS, *began], {}, {}, ONE._replace(collection="once"))
    assert account.violations["attempts"] == 1
