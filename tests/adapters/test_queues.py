"""Celery tasks and Dramatiq actors as runs: a real broker, real worker processes, messages that come twice."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from queue_bodies import LEASE
from queue_fleet import CeleryFleet, DramatiqFleet, Fleet

KINDS = {"celery": CeleryFleet, "dramatiq": DramatiqFleet}


@pytest.fixture(scope="module", params=KINDS)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with KINDS[request.param]() as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


def test_a_message_that_is_delivered_again_is_answered_with_the_result(fleet: Fleet, name: str) -> None:
    # Given a run that has completed
    fleet.open_gate(name)
    fleet.send("think", f"{name}-a", name=name)
    expected = ("completed", {"name": name, "attempt": 1})
    assert fleet.outcome(f"{name}-a") == expected
    # when the same message comes again, and another one for the same run
    fleet.send("think", f"{name}-a", name=name)
    fleet.send("think", f"{name}-b", name=name)
    # expect the stored result, and that the body ran once
    assert fleet.outcome(f"{name}-b") == expected
    fleet.rest()
    assert fleet.outcome(f"{name}-a") == expected
    assert len(fleet.began(name)) == 1
    assert fleet.agent.get(name).result == {"name": name, "attempt": 1}


def test_of_two_copies_one_runs_and_the_other_stands_by(fleet: Fleet, name: str) -> None:
    fleet.send("think", f"{name}-a", name=name)
    fleet.send("think", f"{name}-b", name=name)
    # Given that one of them runs and the other was sent again
    fleet.began(name)
    fleet.until(lambda: fleet.stood_by(f"{name}-a") or fleet.stood_by(f"{name}-b"), "standing by")
    assert fleet.agent.get(name).state == "running"
    # when the one that runs ends, expect both to have its result, from one run of the body
    fleet.open_gate(name)
    assert fleet.outcome(f"{name}-a") == fleet.outcome(f"{name}-b") == ("completed", {"name": name, "attempt": 1})
    fleet.rest()
    assert len(fleet.began(name)) == 1


def test_when_the_worker_is_killed_the_redelivered_message_takes_over(fleet: Fleet, name: str) -> None:
    # Given a worker in the middle of a run, after a checkpoint
    fleet.send("think", f"{name}-a", name=name)
    (first,) = fleet.began(name)
    fleet.until(lambda: fleet.noted(name, "saved"), "the checkpoint")
    # when it is killed, expect another process to go on from the checkpoint
    fleet.kill(first["pid"])
    second = fleet.began(name, times=2)[1]
    assert second["pid"] != first["pid"]
    assert (second["attempt"], second["saved"]) == (2, {"from": 1})
    fleet.open_gate(name)
    assert fleet.outcome(f"{name}-a") == ("completed", {"name": name, "attempt": 2})
    fleet.rest()
    assert len(fleet.began(name)) == 2
    assert [event.kind for event in fleet.agent.events(name, timeout=10)] == ["data", "resumed", "data", "end"]


def test_when_the_worker_is_killed_the_copy_that_stands_by_takes_over(fleet: Fleet, name: str) -> None:
    # Given two copies, of which one runs
    fleet.send("think", f"{name}-a", name=name)
    (first,) = fleet.began(name)
    fleet.send("think", f"{name}-b", name=name)
    fleet.until(lambda: fleet.stood_by(f"{name}-b"), "standing by")
    # when its worker is killed, expect the other to take over, not before the lease has ended
    fleet.kill(first["pid"])
    killed = time.monotonic()
    second = fleet.began(name, times=2)[1]
    assert time.monotonic() - killed > LEASE / 2
    fleet.open_gate(name)
    expected = ("completed", {"name": name, "attempt": second["attempt"]})
    assert fleet.outcome(f"{name}-b") == expected
    # And the message of the killed one, which comes again, is answered with the same.
    assert fleet.outcome(f"{name}-a") == expected
    fleet.rest()
    assert len(fleet.began(name)) == 2


def test_a_stop_from_outside_ends_it_for_good(fleet: Fleet, name: str) -> None:
    fleet.send("think", f"{name}-a", name=name)
    fleet.began(name)
    # when this process stops it
    fleet.agent.stop(name, "enough")
    run = fleet.agent.wait(name, timeout=10)
    # expect the body to have been told, and neither a retry nor a second run
    assert (run.state, run.reason) == ("stopped", "enough")
    assert fleet.outcome(f"{name}-a")[0] == "stopped"
    fleet.rest()
    assert [left["stopping"] for left in fleet.noted(name, "left")] == [True]
    fleet.send("think", f"{name}-b", name=name)
    assert fleet.outcome(f"{name}-b")[0] == "stopped"
    fleet.rest()
    assert len(fleet.began(name)) == 1


def test_a_run_that_was_stopped_before_its_message_came_never_begins(fleet: Fleet, name: str) -> None:
    fleet.agent.start(name)
    fleet.agent.stop(name, "changed my mind")
    fleet.send("think", f"{name}-a", name=name)
    assert fleet.outcome(f"{name}-a")[0] == "stopped"
    fleet.rest()
    assert fleet.noted(name, "began") == []


def test_a_failure_is_final(fleet: Fleet, name: str) -> None:
    # Given a body that raises, although the queue would try again
    fleet.open_gate(name)
    fleet.send("stubborn", f"{name}-a", name=name, fail=True)
    assert fleet.outcome(f"{name}-a")[0] == "failed"
    fleet.rest()
    assert f"Retrying message '{name}-a'" not in fleet.log(), "Dramatiq was told that it is no use"
    # when it is sent again, expect the same end without running the body
    fleet.send("stubborn", f"{name}-b", name=name, fail=True)
    assert fleet.outcome(f"{name}-b")[0] == "failed"
    fleet.rest()
    assert len(fleet.began(name)) == 1
    assert "no luck today" in fleet.agent.get(name).reason


def test_who_does_not_want_to_stand_by_leaves(fleet: Fleet, name: str) -> None:
    fleet.send("once", f"{name}-a", name=name)
    fleet.began(name)
    fleet.send("once", f"{name}-b", name=name)
    fleet.until(lambda: fleet.left(f"{name}-b"), "the second one's end")
    fleet.open_gate(name)
    assert fleet.outcome(f"{name}-a") == ("completed", {"name": name, "attempt": 1})
    fleet.rest()
    assert len(fleet.began(name)) == 1
    assert not fleet.stood_by(f"{name}-b")


def test_without_a_name_the_run_has_the_id_of_the_message(fleet: Fleet, name: str) -> None:
    fleet.send("anonymous", name)
    assert fleet.outcome(name) == ("completed", name)
    assert fleet.agent.get(name).state == "completed"


def test_standing_by_is_no_retry(fleet: Fleet, name: str) -> None:
    # Given an actor that may not be tried again at all, and a run that somebody else has
    fleet.open_gate(name)
    run = fleet.agent.claim(name, lease=LEASE)
    fleet.send("patient", f"{name}-a", name=name)
    fleet.until(lambda: fleet.stood_by(f"{name}-a"), "standing by")
    # when that one gives it back
    with pytest.raises(KeyboardInterrupt), run:
        raise KeyboardInterrupt
    # expect the message to run it, as if for the first time
    assert fleet.outcome(f"{name}-a") == ("completed", {"name": name, "attempt": 2, "retries": 0})
    fleet.rest()


def test_a_body_that_asks_for_another_try_gives_the_run_back(fleet: Fleet, name: str) -> None:
    # Given a body that leaves its first try with the queue's own word for "again", after a checkpoint
    fleet.open_gate(name)
    fleet.send("hesitant", f"{name}-a", name=name)
    # expect the next try to go on with the same run
    assert fleet.outcome(f"{name}-a") == ("completed", {"name": name, "attempt": 2})
    assert [one["saved"] for one in fleet.began(name, times=2)] == [None, {"from": 1}]
    fleet.rest()


def test_each_process_that_worked_is_its_own_owner(fleet: Fleet, name: str) -> None:
    names = [f"{name}-{number}" for number in range(3)]
    for one in names:
        fleet.send("think", one, name=one)
    for one in names:
        (began,) = fleet.began(one)
        assert fleet.agent.get(one).owner.split()[1] == str(began["pid"])
        fleet.open_gate(one)
    fleet.rest()
