"""Random histories of gates against the plainest Python, and a subscriber who must never be left with the wrong state;
random histories of ids and claims against a dict. On a real server whose clock the test moves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from once_histories import GateHistory, IdHistory

from holdfast.sync import Holdfast
from support.backends import Backend
from support.depth import tries
from support.faults import Plan, install
from support.model import CLOCK_KEY, MovedClock

numbers = itertools.count()
examined = settings(**tries(60, 5000), suppress_health_check=list(HealthCheck))


def step(name: str, *arguments: Any) -> Any:
    return st.tuples(st.just(name), *arguments)


def often(times: int, name: str, *arguments: Any) -> list[Any]:
    """So much likelier than another: a strategy that is named twice would count once."""
    return [step(name, *arguments) for _ in range(times)]


state, who, truth = st.sampled_from("ABC"), st.integers(0, 1), st.booleans()
seconds = st.sampled_from([1.0, 29.0, 30.0, 100.0, 100.0, 150.0, 299.0, 300.0, 301.0])
gate_steps = st.lists(
    st.one_of(
        *often(8, "check", state, who, truth), step("interrupted_check", state), *often(3, "time_passes", seconds),
        *often(2, "take", who), step("take_and_die", who, truth), *often(2, "tell", st.integers(0, 3), who),
        step("forget"),
    ),
    min_size=12, max_size=24,
)  # fmt: skip

name, three = st.sampled_from("abc"), st.integers(0, 2)
id_steps = st.lists(
    st.one_of(
        *often(2, "filter_new", three, st.lists(name, max_size=4), st.sampled_from([5.0, 20.0])),
        *often(3, "begin", three, name), *often(3, "leave", st.integers(0, 9), truth),
        step("forget", st.lists(name, max_size=2)), *often(2, "time_passes", st.sampled_from([3, 6, 12])),
    ),
    min_size=12, max_size=25,
)  # fmt: skip


def play(history: Any, steps: list[Any]) -> None:
    for name, *arguments in steps:
        getattr(history, name)(*arguments)
    history.end()


@pytest.fixture
def server(valkey: Backend) -> Iterator[redis.Redis]:
    client = valkey.owner.client()
    yield client
    client.flushall()
    client.close()


def test_a_gate_follows_its_rule_and_leaves_nobody_with_the_wrong_state(valkey: Backend, server: redis.Redis) -> None:
    plan = Plan({}, KeyboardInterrupt)
    with Holdfast(valkey.url) as one, Holdfast(valkey.url) as two:
        for client in (one, two):
            client._core.scripts = MovedClock()
        for script in ("once/gate", "once/untell", "once/due", "once/told", "once/forget"):
            server.script_load(one._core.scripts.get(script).source)  # so that steps are counted alike in each run
        install(one, plan)

        @examined
        @given(gate_steps)
        def histories(steps: list[Any]) -> None:
            plan.faults = {}
            play(GateHistory(server, [one, two], plan, f"g{next(numbers)}"), steps)

        histories()
    server.delete(CLOCK_KEY)


def test_ids_and_claims_agree_with_a_dict(valkey: Backend, server: redis.Redis) -> None:
    with Holdfast(valkey.url) as one, Holdfast(valkey.url) as two, Holdfast(valkey.url) as three:

        @examined
        @given(id_steps)
        def histories(steps: list[Any]) -> None:
            play(IdHistory(server, [one, two, three], f"s{next(numbers)}"), steps)

        histories()
