"""What can never work is refused before anything is sent, and the error says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from once_desk import Desk, Desks

from holdfast import ConfigurationError, HoldfastError, InvalidId, InvalidPayload, TooLarge

BAD_SECONDS = (0, -1, float("nan"), float("inf"), True, "1", 10**12)
BAD_IDS = ("", b"", (), None, 1.5, True, ["a"], {"a"}, ("a", 1.5), ("a",) * 65, "x" * 70_000)
BAD_POLICIES = ("", "Allow", "ignore", None, True)
BAD_SPACES = ("", b"orders", 7, None, ["a"], "x" * 513, ("a",))


async def refuses(desks: Desks, desk: Desk, call: Callable[[Any], Any], kind: type[HoldfastError] = ConfigurationError):
    """It raises, says first what to do, and nothing was sent."""
    server = desks.backend.primaries()[0]
    before = server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    with pytest.raises(kind) as caught:
        await desk.actor.do(call)
    text = str(caught.value)
    assert text.split(maxsplit=1)[0] in ("pass", "name", "nest", "store"), f"it does not say what to do: {text}"
    assert server.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) == before, "something was sent"


@pytest.mark.parametrize("wrong", BAD_SECONDS, ids=repr)
async def test_seconds(quick: Desks, wrong: Any):
    desk = await quick.desk()
    for call in (
        lambda hf: hf.once("s", "a", wrong),
        lambda hf: hf.filter_new("s", ["a"], wrong),
        lambda hf: hf.filter_new("s", [], wrong),
        lambda hf: hf.claim("s", "a", wrong),
        lambda hf: hf.claim("s", "a", lease=wrong),
        lambda hf: hf.idempotent("{key}", ttl=wrong)(function),
        lambda hf: hf.idempotent("{key}", lease=wrong)(function),
        lambda hf: hf.gate("g", wrong),
        lambda hf: hf.gate("g", keep=wrong),
        lambda hf: hf.settled(hf.gate("g"), lease=wrong),
        lambda hf: hf.gate("g").due(lease=wrong),
    ):
        await refuses(quick, desk, call)
    if wrong != 0 or wrong is True:
        await refuses(quick, desk, lambda hf: hf.claim("s", "a", wait=wrong))
        await refuses(quick, desk, lambda hf: hf.idempotent("{key}", wait=wrong)(function))


def function(key: str) -> str:
    return key


@pytest.mark.parametrize("wrong", BAD_IDS, ids=lambda one: f"{one!r:.20}")
async def test_ids(quick: Desks, wrong: Any):
    desk = await quick.desk()
    keyed = desk.hf.idempotent(lambda key: wrong)(function)
    for call in (
        lambda hf: hf.once("s", wrong),
        lambda hf: hf.filter_new("s", ["fine", wrong]),
        lambda hf: hf.forget("s", "fine", wrong),
        lambda hf: hf.claim("s", wrong),
        lambda hf: hf.gate("g").check(wrong, 1),
        lambda hf: hf.gate("g").check_many([("fine", 1), (wrong, 1)]),
        lambda hf: hf.gate("g").forget(wrong),
        lambda hf: keyed("a"),
    ):
        await refuses(quick, desk, call, InvalidId)


@pytest.mark.parametrize("wrong", BAD_POLICIES, ids=repr)
async def test_policies(quick: Desks, wrong: Any):
    desk = await quick.desk()
    for call in (
        lambda hf: hf.once("s", "a", on_outage=wrong),
        lambda hf: hf.filter_new("s", ["a"], on_outage=wrong),
        lambda hf: hf.filter_new("s", [], on_outage=wrong),
        lambda hf: hf.claim("s", "a", on_outage=wrong),
        lambda hf: hf.idempotent("{key}", on_outage=wrong)(function),
        lambda hf: hf.gate("g", on_outage=wrong),
    ):
        await refuses(quick, desk, call)


@pytest.mark.parametrize("wrong", BAD_SPACES, ids=lambda one: f"{one!r:.20}")
async def test_spaces(quick: Desks, wrong: Any):
    desk = await quick.desk()
    for call in (
        lambda hf: hf.once(wrong, "a"),
        lambda hf: hf.filter_new(wrong, ["a"]),
        lambda hf: hf.filter_new(wrong, []),
        lambda hf: hf.forget(wrong, "a"),
        lambda hf: hf.claim(wrong, "a"),
        lambda hf: hf.gate(wrong),
    ):
        await refuses(quick, desk, call)
    if wrong:  # else its own name is taken
        await refuses(quick, desk, lambda hf: hf.idempotent("{key}", space=wrong)(function))


@pytest.mark.parametrize(
    "wrong", [float("nan"), object(), {1: 2}, "\ud800", {"a": {1}}], ids=lambda one: f"{one!r:.12}"
)
async def test_states(quick: Desks, wrong: Any):
    desk = await quick.desk()
    await refuses(quick, desk, lambda hf: hf.gate("g").check("k", wrong), InvalidPayload)
    await refuses(quick, desk, lambda hf: hf.gate("g").check_many([("a", 1), ("k", wrong)]), InvalidPayload)


async def test_states_that_are_too_large(quick: Desks):
    desk = await quick.desk(max_message_bytes=1000)
    await refuses(quick, desk, lambda hf: hf.gate("g").check("k", "x" * 1000), TooLarge)


async def test_one_text_where_several_are_wanted(quick: Desks):
    desk = await quick.desk()
    for call in (
        lambda hf: hf.filter_new("s", "abc"),
        lambda hf: hf.filter_new("s", b"abc"),
        lambda hf: hf.gate("g", fields="price"),
        lambda hf: hf.gate("g", ignore="seen"),
        lambda hf: hf.gate("g", fields=[1]),
        lambda hf: hf.gate("g").check("k", {"price": 1}, fields="price"),
        lambda hf: hf.gate("g").check_many([("k", {"price": 1})], fields="price"),
        lambda hf: hf.gate("g").check_many(["ab"]),
        lambda hf: hf.gate("g").check_many([("k",)]),
        lambda hf: hf.gate("g").check_many([("k", 1, 2)]),
    ):
        await refuses(quick, desk, call)
    for fields in ({"fields": ["a"]}, {"ignore": ["a"]}):
        await refuses(quick, desk, lambda hf, f=fields: hf.gate("g", **f).check("k", "no dict"), InvalidPayload)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "1", 10_001])
async def test_counts(quick: Desks, wrong: Any):
    desk = await quick.desk()
    await refuses(quick, desk, lambda hf: hf.gate("g").due(wrong))


async def test_keys_of_calls(quick: Desks):
    desk = await quick.desk()
    for wrong in (None, 7, b"{key}", ["{key}"]):
        await refuses(quick, desk, lambda hf, w=wrong: hf.idempotent(w)(function))
    for wrong in ("{other}", "{0}", "{}", "{key", "none"):  # told when it is decorated
        with pytest.raises(ConfigurationError, match=r"(name arguments of the function in|mend) key="):
            desk.calls(function, wrong)
    for wrong in ("{key.nothing}", "{key[nothing]}", "{key!z}"):
        called = desk.calls(function, wrong)
        with pytest.raises(ConfigurationError, match="name arguments of the function in key="):
            await called("a")
    for nothing in (None, "", b""):
        with pytest.raises(InvalidId, match="pass key"):
            await desk.calls(function, "pay-{key}")(nothing)
    with pytest.raises(TypeError):
        await desk.calls(function)("a", "b")  # as the function itself would say
    await refuses(quick, desk, lambda hf: hf.idempotent("{key}")(7), ConfigurationError)
    assert quick.lives() == {}


async def test_nothing_before_it_is_open(quick: Desks):
    desk = await quick.desk()
    closed = type(desk.hf)(quick.url)
    for call in (
        lambda: closed.once("s", "a"),
        lambda: closed.forget("s", "a"),
        lambda: closed.claim("s", "a").begin(),
        lambda: closed.gate("g").check("k", 1),
        lambda: closed.gate("g").due(),
    ):
        with pytest.raises(ConfigurationError, match="open it first"):
            await desk.actor.do(lambda _, c=call: c())
