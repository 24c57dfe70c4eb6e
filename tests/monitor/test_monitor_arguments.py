"""What can never be observed is refused before anything is sent, and says what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from monitor_desk import Desks

from holdfast import ConfigurationError, Holdfast, HoldfastError, Subscriber
from holdfast.memory import MonitorStore

BAD_KEYS: list[Any] = [
    True, False, 1.5, b"bytes", None, [], ["a"], {"a": 1}, (), ("a", True), ("a", 1.0), ("a", b"x"), ("a", None),
    ("a", ("b",)), "", ("a", ""), "\ud800", ("a", "\udfff"), 2**63, -(2**63) - 1, ("a", 2**63), "x" * 513,
    ("x",) * 17, object(),
]  # fmt: skip
BAD_SOURCES: list[Any] = [None, "", b"web", 5, ("web",), "\ud800", "x" * 513]
BAD_TIMES: list[Any] = [
    datetime(2026, 5, 1), float("nan"), float("inf"), -1, -0.001, True, "2026-05-01", datetime(1969, 1, 1, tzinfo=UTC),  # noqa: DTZ001
    1_790_000_000_000, b"1", 10**400,
]  # fmt: skip
BAD_STATES: list[Any] = [
    float("nan"), {"a": float("inf")}, {1: 2}, object(), {"a": {1, 2}}, "\ud800", datetime(2026, 5, 1, tzinfo=UTC),
    10**5000, "x" * (1 << 21),
]  # fmt: skip


async def refused(desk: Any, *observation: Any) -> None:
    for method in ("observe", "observe_many"):
        arguments = observation if method == "observe" else ([("web", "good", 1), observation],)
        with pytest.raises(HoldfastError) as told:
            await getattr(desk, method)(*arguments)
        assert str(told.value).split(" ")[0] in ("pass", "nest", "store", "give")
        assert len(str(told.value)) < 300
    assert desk.server.keys() == [], "something was stored"


@pytest.fixture
async def desk(hands: Desks) -> Any:
    made = await hands.desk({"max_message_bytes": 1 << 20})
    made.server = hands.server
    return made


async def test_keys(desk: Any):
    for key in BAD_KEYS:
        await refused(desk, "web", key, 1)
        for method in ("get", "forget"):
            with pytest.raises(HoldfastError, match="pass"):
                await getattr(desk, method)("web", key)


async def test_sources(desk: Any):
    for source in BAD_SOURCES:
        await refused(desk, source, "a", 1)


async def test_times(desk: Any):
    for when in BAD_TIMES:
        await refused(desk, "web", "a", 1, when)
    with pytest.raises(ConfigurationError, match="time zone"):
        await desk.observe("web", "a", 1, datetime(2026, 5, 1))  # noqa: DTZ001


async def test_states(desk: Any):
    for state in BAD_STATES:
        await refused(desk, "web", "a", state)


async def test_states_that_are_no_dicts_have_no_fields(hands: Desks):
    desk = await hands.desk(fields=["price"])
    with pytest.raises(HoldfastError, match="pass the state as a dict"):
        await desk.observe("web", "a", 5)


@pytest.mark.parametrize("one", ["abcd", ("web", "a"), ("web", "a", 1, 2, 3), {"a": 1}, None, 5], ids=str)
async def test_observations_have_three_parts_or_four(desk: Any, one: Any):
    with pytest.raises(ConfigurationError, match="pass observations as"):
        await desk.observe_many([one])


@pytest.mark.parametrize(
    "options",
    [
        {"fields": "price"}, {"fields": [1]}, {"ignore": "price"}, {"window": -1}, {"window": float("nan")},
        {"window": True}, {"keep": 0}, {"backlog": 9}, {"backlog": 10**7}, {"backlog": 1.5}, {"workers": 0},
        {"workers": True}, {"allow": "localhost"},
    ],
    ids=str,
)  # fmt: skip
def test_a_monitor_of_nonsense_is_refused(options: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="pass"):
        Holdfast("embedded:").monitor("venues", **options)


@pytest.mark.parametrize("name", ["", b"venues", 5, None, "x" * 65, "é" * 11])
def test_a_name_is_short_text(name: Any):
    with pytest.raises(HoldfastError, match=r"pass|name"):
        Holdfast("embedded:").monitor(name)


def test_the_same_name_is_the_same_monitor():
    hf = Holdfast("embedded:")
    one = hf.monitor("venues", fields=["price"], window=5, backlog=50)
    again, same = hf.monitor("venues"), hf.monitor("venues", fields=("price",), window=5.0, backlog=50)
    assert one._spec == again._spec == same._spec
    assert one._parts is again._parts is same._parts
    with pytest.raises(ConfigurationError, match="pass the same options"):
        hf.monitor("venues", window=6)
    with pytest.raises(ConfigurationError, match="pass the same store"):
        hf.monitor("venues", store=MonitorStore("sqlite://"))
    assert repr(one) == "<Monitor venues>"


def test_a_subscriber_is_registered_once():
    monitor = Holdfast("embedded:").monitor("venues")
    monitor.on_change(lambda delivery: None)
    monitor.subscriber("x")(print)
    with pytest.raises(ConfigurationError, match="register each subscriber once"):
        monitor.subscriber("x")(print)
    with pytest.raises(ConfigurationError, match="pass retries"):
        monitor.subscriber("y", retries=-1)(print)


async def test_what_needs_a_store_says_so(desk: Any):
    for call in (
        desk.subscribe(Subscriber("s", "webhook", "https://example.com")), desk.history("web", "a"), desk.pushes(),
        desk.prune(), desk.plot("web", "a", "price"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match="pass a store"):
            await call
    with pytest.raises(ConfigurationError, match="register functions"):
        await desk.subscribe(Subscriber("s", "call", "s"))


@pytest.mark.parametrize("options", [{"within": -1}, {"within": float("nan")}, {"lease": 0}, {"lease": "1"}], ids=str)
async def test_how_long_a_task_counts(desk: Any, options: dict[str, Any]):
    desk.monitor.parser("web")(lambda raw: [("a", raw)])
    with pytest.raises(ConfigurationError, match="pass"):
        await desk.process("web", "task", 1, **options)
    assert desk.server.keys() == []


@pytest.mark.parametrize("count", [0, 1001, True, 1.5])
async def test_how_many_dead_letters(desk: Any, count: Any):
    with pytest.raises(ConfigurationError, match="pass count"):
        await desk.dead_letters(count)


@pytest.mark.parametrize("letter", ["", "nonsense", "1-1", "-", 5, "\ud800"], ids=repr)
async def test_a_letter_that_is_none(desk: Any, letter: Any):
    """One that was purged is none either; what can never be one is refused."""
    for method in ("replay", "purge"):
        if letter == "1-1":
            assert not await getattr(desk, method)(letter)
        else:
            with pytest.raises(HoldfastError, match="pass the id of a dead letter"):
                await getattr(desk, method)(letter)
