"""Hypothesis drives random interleavings of everything that can happen to the users of one shard, against a reference
in plain Python, on a real server whose clock the test moves. Keys end with that clock too.

HOLDFAST_MODEL_EXAMPLES=2000 and HOLDFAST_MODEL_STEPS=80 make a deeper run, another one each time.
"""

from __future__ import annotations

import os

import pytest
from buffer_machine import BufferMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from support.backends import Backends

EXAMPLES = int(os.environ.get("HOLDFAST_MODEL_EXAMPLES", "0"))
STEPS = int(os.environ.get("HOLDFAST_MODEL_STEPS", "40"))


@pytest.fixture
def machine(backends: Backends):
    """The same machine, driven by hand."""
    server = backends.get("valkey").owner.client()
    made = type("ByHand", (BufferMachine,), {"server": server})()
    made.configure((4, 10_000, 0))
    yield made
    server.flushall()
    server.close()


def claimed(machine: BufferMachine) -> str:
    """Whose batch a claim gets."""
    machine.claim(30_000)
    return machine.tokens[-1][0] if machine.tokens else ""


def test_whoever_is_overdue_longest_is_first_whatever_the_backlog(machine: BufferMachine):
    machine.append("u1", 1, True)
    machine.time_passes(1_000)
    machine.extend("u0", [1, 1, 1], True)
    machine.time_passes(10_000)
    assert [claimed(machine), claimed(machine)] == ["u1", "u0"]


def test_within_a_second_the_largest_backlog_is_first(machine: BufferMachine):
    for name, count in (("u0", 1), ("u2", 2), ("u1", 3)):
        for _ in range(count):
            machine.append(name, 1, True)
        machine.time_passes(1)
    machine.time_passes(10_000)
    assert [claimed(machine) for _ in range(3)] == ["u1", "u2", "u0"]


def test_whoever_was_overdue_stays_in_its_place_while_more_comes(machine: BufferMachine):
    machine.extend("u0", [1, 1, 1, 1], True)
    machine.time_passes(2_500)
    machine.extend("u1", [1, 1, 1, 1, 1], True)
    machine.append("u0", 1, True)
    assert [claimed(machine), claimed(machine)] == ["u0", "u1"]


def test_a_batch_whose_holder_died_is_due_when_its_lease_ends(machine: BufferMachine):
    machine.extend("u0", [1, 1, 1, 1], True)
    assert claimed(machine) == "u0"
    machine.time_passes(31_000)
    machine.extend("u1", [1, 1, 1, 1, 1], True)
    assert [claimed(machine), claimed(machine)] == ["u0", "u1"]


def test_a_batch_that_nobody_takes_lives_as_long_as_a_message(machine: BufferMachine):
    machine.append("u0", 1, True)
    machine.take("u0", 1_000, 1, False)
    machine.nack(0, 0, 0)
    for _ in range(3):
        machine.time_passes(31_000)
        machine.the_server_agrees_with_the_model()
    machine.take("u0", 1_000, 1, False)


@pytest.mark.timeout(120 if not EXAMPLES else 7200)
def test_scripts_agree_with_the_reference(backends: Backends) -> None:
    class Machine(BufferMachine):
        pass

    Machine.server = backends.get("valkey").owner.client()
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=EXAMPLES or 35, stateful_step_count=STEPS, deadline=None, derandomize=not EXAMPLES,
                suppress_health_check=list(HealthCheck), database=None,
            ),
        )  # fmt: skip
    finally:
        Machine.server.flushall()
        Machine.server.close()
