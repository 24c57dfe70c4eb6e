"""Hypothesis drives random interleavings of everything that can happen to the runs of one collection, against a
reference in plain Python, on a real server whose clock the test moves, forward and back. Keys end with that clock too.

HOLDFAST_MODEL_EXAMPLES=2000 and HOLDFAST_MODEL_STEPS=80 make a deeper run, another one each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from run_model_machine import KeysEndToo, RunMachine

from support.backends import Backends

EXAMPLES = int(os.environ.get("HOLDFAST_MODEL_EXAMPLES", "0"))
STEPS = int(os.environ.get("HOLDFAST_MODEL_STEPS", "40"))


def drive(machine: type[RunMachine], backends: Backends, **options: Any) -> None:
    machine.server = backends.get("valkey").owner.client()
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck), database=None,
                **options,
            ),
        )  # fmt: skip
    finally:
        machine.server.flushall()
        machine.server.close()


@pytest.mark.timeout(120 if not EXAMPLES else 7200)
def test_scripts_agree_with_the_reference(backends: Backends) -> None:
    class Machine(RunMachine):
        pass

    drive(Machine, backends, max_examples=EXAMPLES or 30, derandomize=not EXAMPLES)


@pytest.fixture
def server(backends: Backends) -> Iterator[redis.Redis]:
    client = backends.get("valkey").owner.client()
    yield client
    client.flushall()
    client.close()


class ByHand:
    """The same machine, driven by hand: every step is followed by the same checks."""

    def __init__(self, server: redis.Redis, scripts: KeysEndToo) -> None:
        self._machine: Any = type("Machine", (RunMachine,), {"server": server, "make_scripts": lambda _: scripts})()

    def __getattr__(self, name: str) -> Any:
        def step(*args: Any, **kwargs: Any) -> None:
            getattr(self._machine, name)(*args, **kwargs)
            self._machine.the_server_agrees_with_the_model()

        return step

    def give(self, most: int = 3, lease: int = 1_000) -> None:
        self.take(1, "o0", lease, most)

    def add(self, run: str, key: str = "k0", policy: str = "queue") -> None:
        self.start(run, key, 0, policy)

    def end(self, outcome: str, back: int = 0, delay: int = 0) -> None:
        self.settle(back, 0, delay, True, outcome)


def fences(by: ByHand) -> None:
    by.add("r0", "")
    by.add("r1", "")
    by.give()
    by.give()
    by.time_passes(-400)
    by.end("uncounted")
    by.give()


def what_counts(by: ByHand) -> None:
    by.add("r0")
    for outcome in ("uncounted", "uncounted", "returned"):
        by.give()
        by.end(outcome)
    for _ in range(2):
        by.give()
        by.time_passes(1_001)
        by.sweep()


def lost_owners(by: ByHand) -> None:
    by.add("r0")
    by.time_passes(1)
    by.add("r1", "k1")
    by.give()
    by.write(0, 2, "c", False)
    by.time_passes(1_001)
    by.look("r0")
    by.end("completed")  # of the lost owner: refused
    by.write(0, 1, "", False)
    by.give()
    by.write(0, 3, "", False)
    by.stop("r0")
    by.time_passes(1_001)
    by.sweep()


def clock_set_back(by: ByHand) -> None:
    by.add("r0")
    by.give(lease=10_000)
    by.time_passes(-20_000)
    by.look("r0")
    by.time_passes(10_001)
    by.give()


def slots_of_a_key(by: ByHand) -> None:
    for run in ("r0", "r1", "r2"):
        by.add(run)
        by.time_passes(1)
    by.claim("r2", "k0", "o1", 1_000, 3, False)
    by.give()
    by.end("completed")
    by.give(lease=10_000)
    by.add("r3", "k0", "replace")
    by.end("completed")
    by.claim("r3", "k0", "o1", 1_000, 3, False)
    by.stop("r3", "k0")
    by.end("failed")


def claims(by: ByHand) -> None:
    by.claim("r0", "k0", "o0", 1_000, 3, False)
    by.write(0, 4, "s", False)
    by.write(0, 4, "s", True)
    by.time_passes(1_001)
    by.claim("r0", "k0", "o1", 1_000, 3, False)
    by.end("returned")
    by.orphans()
    by.listed()
    by.time_passes(61_000)
    by.add("r0", "k0", "reject")
    by.listed()


def claimed_from_the_queue(by: ByHand) -> None:
    by.add("r0")
    by.give()
    by.end("returned")
    by.claim("r0", "k0", "o1", 1_000, 3, False)
    by.end("returned")
    by.claim("r0", "k0", "o1", 1_000, 3, False)
    by.end("completed")


SCENARIOS = (claimed_from_the_queue, fences, what_counts, lost_owners, clock_set_back, slots_of_a_key, claims)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_by_hand(server: redis.Redis, scenario: Callable[[ByHand], None]) -> None:
    scenario(ByHand(server, KeysEndToo()))


class WithBug(KeysEndToo):
    def __init__(self, place: str, right: str, wrong: str) -> None:
        super().__init__()
        self._place, self._right, self._wrong = place, right, wrong

    def read(self, room: str, name: str) -> str | None:
        text = super().read(room, name)
        if f"{room}/{name}" == f"runs/{self._place}":
            if text is None or self._right not in text:
                raise LookupError(f"{name} has no {self._right!r} any more: write this bug anew")
            text = text.replace(self._right, self._wrong)
        return text


BUGS: dict[str, tuple[Callable[[ByHand], None], str, str, str]] = {
    "fences follow the clock alone": (fences, "_give", "return last < now_us and now_us or last + 1", "return now_us"),
    "what did not count is counted": (what_counts, "_move", "elseif attempt - free >=", "elseif attempt >="),
    "a lost one goes to the end of the queue": (lost_owners, "_move", "requeue(created * 1000)", "requeue(now_us)"),
    "a lost owner can still end it": (lost_owners, "_move", "  token = ''", "  --"),
    "an owner keeps the numbers of its writes": (lost_owners, "_give", "most, holder, 0", "most, holder, batch"),
    "a stop is forgotten with its owner": (lost_owners, "_move", "  if stop_at > 0 then", "  if false then"),
    "a clock set back lengthens a lease": (clock_set_back, "_move", "if owned() and deadline - now > span", "if false"),
    "nobody gets a free slot": (slots_of_a_key, "_move", "    promote(key)\n", ""),
    "an index is left": (claims, "_move", "call('ZREM', base .. 'is:' .. STATES[state], id)", ""),
    "the owner stays in its list": (claims, "_move", "call('ZREM', base .. 'o:' .. owner, id)", ""),
    "a repeated write is stored again": (claims, "write", "if number <= batch then", "if false then"),
    "who had the id before is listed": (claims, "list", "wanted == 0 or", "true or"),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_is_found(server: redis.Redis, bug: str) -> None:
    """The same steps, with a bug put back in the scripts, disagree with the reference."""
    scenario, *place = BUGS[bug]
    with pytest.raises(AssertionError):
        scenario(ByHand(server, WithBug(*place)))
