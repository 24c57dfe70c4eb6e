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
examined = settings(**tries(150, 5000), suppress_health_check=list(HealthCheck))


def step(name: str, *arguments: Any) -> Any:
    return st.tuples(st.just(name), *arguments)


state, who, truth = st.sampled_from("ABC"), st.integers(0, 1), st.booleans()
seconds = st.sampled_from([1.0, 29.0, 30.0, 100.0, 100.0, 150.0, 299.0, 300.0, 301.0])
looks = step("check", state, who, truth)
gate_steps = st.lists(
    st.one_of(
        *[looks] * 7, step("interrupted_check", state), *[step("time_passes", seconds)] * 3, *[step("take", who)] * 2,
        step("take_and_die", who, truth), *[step("tell", st.integers(0, 3), who)] * 2, step("forget"),
    ),
    min_size=3, max_size=20,
)  # fmt: skip

name, three = st.sampled_from("abc"), st.integers(0, 2)
id_steps = st.lists(
    st.one_of(
        step("filter_new", three, st.lists(name, max_size=4), st.sampled_from([5.0, 20.0])), step("begin", three, name),
        step("begin", three, name), step("leave", st.integers(0, 9), truth), step("leave", st.integers(0, 9), truth),
        step("forget", st.lists(name, max_size=2)), step("time_passes", st.sampled_from([3, 6, 12])),
    ),
    min_size=3, max_size=25,
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
