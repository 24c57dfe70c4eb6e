"""Short runs of `python -m chaos`: the account must be clean, and must not be where nothing is checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.checker.account import check
from chaos.faults.schedule import KINDS, draw
from chaos.history.log import REFUSED, STORED, UNKNOWN, Log, Record
from chaos.run import Plan, run

from holdfast.memory import NewEntry, Store

# Shorter than this, and the control below does not always find its duplicates.
SHORT = {"users": 60, "messages": 9_000, "rate": 900.0, "busy": 0.4}


SCHEDULES = (1, 2, 3)
"""Whether a fault meets a batch is chance, the less likely the busier the machine: where none did, the next one."""


def room(tmp_path: Path, schedule: int) -> Path:
    made = tmp_path / str(schedule)
    made.mkdir()
    return made


@pytest.mark.timeout(240)
def test_kills_pauses_restarts_and_cuts_lose_and_repeat_nothing(tmp_path: Path) -> None:
    for schedule in SCHEDULES:
        outcome = run(Plan(schedule=schedule, **SHORT), room(tmp_path, schedule))

        account = outcome.account
        assert set(outcome.faults) == set(KINDS["single"]), "every kind of fault came up"
        assert account.lost == 0, outcome
        assert account.duplicates == 0, outcome
        assert account.unexpected == 0, outcome
        assert account.dropped > 0, "something was dropped, and counted"
        assert account.unknown == 0
        assert account.reported <= account.dropped, "an append that was repeated does not know what it dropped"
        assert account.acknowledged - account.absorbed == account.dropped, outcome
        if outcome.counts.get("redelivered", 0) > 0:
            return
    pytest.fail("nothing was handed out twice: the faults met nobody")


@pytest.mark.timeout(240)
def test_with_a_sink_that_checks_nothing_the_same_shows_duplicates(tmp_path: Path) -> None:
    outcomes = []
    for schedule in SCHEDULES:
        outcomes.append(run(Plan(schedule=schedule, guard="off", **SHORT), room(tmp_path, schedule)))
        if outcomes[-1].account.duplicates > 0:
            assert not outcomes[-1].account.clean
            return
    pytest.fail(f"no duplicates: {outcomes}")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("server", ["sentinel", "cluster"])
def test_failovers_repeat_nothing_and_lose_little(tmp_path: Path, server: str) -> None:
    outcome = run(Plan(schedule=2, server=server, users=60, messages=8_000, rate=800.0), tmp_path)

    account = outcome.account
    assert outcome.faults.get("failover", 0) >= 1
    assert account.duplicates == 0, outcome
    assert account.unexpected == 0, outcome
    # Replication is asynchronous: what the dead primary had not passed on is gone. It is a moment, not seconds.
    assert account.lost <= 400, outcome


def test_the_schedule_is_the_same_for_the_same_number_and_has_every_fault() -> None:
    for server, kinds in KINDS.items():
        assert draw(7, server, 60) == draw(7, server, 60) != draw(8, server, 60)
        assert {fault.kind for fault in draw(7, server, 60)} == set(kinds)


@pytest.mark.parametrize(
    ("told", "stored", "dropped", "expected"),
    [
        ([(0, STORED), (1, STORED)], [0, 1], 0, {"lost": 0, "duplicates": 0, "unexpected": 0}),
        ([(0, STORED), (1, STORED)], [0], 0, {"lost": 1, "duplicates": 0, "unexpected": 0}),
        ([(0, STORED), (1, STORED)], [0], 1, {"lost": 0, "duplicates": 0, "unexpected": 0}),
        ([(0, STORED), (1, STORED)], [0, 1], 1, {"lost": 1, "duplicates": 0, "unexpected": 0}),
        ([(0, STORED), (1, STORED)], [0, 1, 1], 0, {"lost": 0, "duplicates": 1, "unexpected": 0}),
        ([(0, STORED), (1, REFUSED)], [0, 1], 0, {"lost": 0, "duplicates": 0, "unexpected": 1}),
        ([(0, STORED), (1, UNKNOWN)], [0, 1], 0, {"lost": 0, "duplicates": 0, "unexpected": 0}),
        ([(0, STORED), (1, UNKNOWN)], [0], 1, {"lost": 0, "duplicates": 0, "unexpected": 0}),
    ],
)  # fmt: skip
def test_the_checker_sees_what_does_not_add_up(
    tmp_path: Path, told: list[tuple[int, str]], stored: list[int], dropped: int, expected: dict[str, int]
) -> None:
    # Given what producers were told and what is in SQL
    log = Log(tmp_path / "producer-0.jsonl")
    for number, outcome in told:
        log.write(Record(number, 1, outcome, 0))
    log.close()
    database = f"sqlite:///{tmp_path / 'memory.db'}"

    class Origin:
        buffer, key, attempt, messages, pairs = "chaos", "u", 1, (), ()

        def __init__(self, number: int) -> None:
            self.id, self.fence = str(number), number + 1

    with Store(database) as store:
        for at, number in enumerate(stored):
            store.commit(Origin(at), "verbatim", [NewEntry("episodic", str(number), at=1.0)])

    # when it is compared, expect the account to say what is wrong
    account = check(tmp_path, database, {"dropped.capacity": dropped, "absorbed": 5}).as_dict()
    assert {name: account[name] for name in expected} == expected
    assert account["clean"] == (not any(expected.values()))
