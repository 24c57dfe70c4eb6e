"""Which call is which: keys, names, methods, decorated functions. On every kind of server, asyncio and threads."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from once_desk import Desks, Till

import holdfast.sync
from holdfast import ConfigurationError, Holdfast, KeyMismatch
from support.backends import Backend


async def test_keys_are_templates_or_functions_of_the_arguments(desks: Desks):
    desk = await desks.desk()
    till = Till()

    def same(*_: Any) -> None:
        return None

    one = desk.calls(till.charge, "{key}", space="one", payload=same)
    assert [(await one(key))["receipt"] for key in ("1", 1, b"1", ("1",), "2")] == [1, 2, 1, 3, 4]
    text = desk.calls(till.charge, "order-{key}/{amount}", space="text", payload=same)
    assert [(await text(*args))["receipt"] for args in (("a", 1), ("a", 2), ("a",), ("b", 1))] == [5, 6, 5, 7]
    made = desk.calls(till.charge, lambda key, amount=1: (key, amount), space="made", payload=same)
    assert [(await made(*args))["receipt"] for args in (("19:00", 1), ("19", 1), ("19:00", 2), ("19:00",))] == [
        8,
        9,
        10,
        8,
    ]


async def test_parts_that_look_alike_when_joined_are_never_taken_for_each_other(desks: Desks):
    """PITFALL 40: where a template joins them, the arguments tell."""
    desk = await desks.desk()

    def book(slot: str, venue: str) -> str:
        return f"{slot} at {venue}"

    joined = desk.calls(book, "{slot}:{venue}", space="joined")
    assert await joined("19:00", "a") == "19:00 at a"
    with pytest.raises(KeyMismatch):
        await joined("19", "00:a")
    apart = desk.calls(book, lambda slot, venue: (slot, venue), space="apart")
    assert [await apart("19:00", "a"), await apart("19", "00:a")] == ["19:00 at a", "19 at 00:a"]


async def test_functions_are_told_apart_by_their_names(desks: Desks):
    desk = await desks.desk()

    def charge(key: str) -> str:
        return "charged"

    def refund(key: str) -> str:
        return "refunded"

    assert [await desk.calls(function)("a") for function in (charge, refund)] == ["charged", "refunded"]
    assert await desk.calls(refund, space="charge")("a") == "refunded"
    assert await desk.calls(charge, space="charge")("a") == "refunded"
    # ids of `once` are others
    assert await desk.once("charge", "a")


async def test_methods_are_called_on_their_object_which_is_no_argument(desks: Desks):
    desk = await desks.desk()
    hf = desk.hf

    if desk.blocking:

        class Shop:
            def __init__(self, name: str) -> None:
                self.name = name

            @hf.idempotent("{key}", space="shop")
            def charge(self, key: str, amount: int) -> str:
                return f"{self.name} {key} {amount}"

    else:

        class Shop:  # type: ignore[no-redef]
            def __init__(self, name: str) -> None:
                self.name = name

            @hf.idempotent("{key}", space="shop")
            async def charge(self, key: str, amount: int) -> str:
                return f"{self.name} {key} {amount}"

    one, other = Shop("one"), Shop("other")
    assert await desk.on(one, "charge", "a", 1) == "one a 1"
    assert await desk.on(other, "charge", "a", amount=1) == "one a 1"
    with pytest.raises(KeyMismatch):
        await desk.on(other, "charge", "a", 2)


async def test_the_function_keeps_its_name_and_signature(valkey: Backend):
    async with Holdfast(valkey.url) as hf:

        @hf.idempotent("{order_id}")
        async def charge(order_id: str, amount: int = 1) -> str:
            """Takes the money."""
            return order_id

        assert (charge.__name__, charge.__doc__) == ("charge", "Takes the money.")
        assert list(inspect.signature(charge).parameters) == ["order_id", "amount"]
        assert inspect.iscoroutinefunction(charge)
        assert await charge("a") == "a"

        @hf.idempotent("{order_id}", space="plain")
        def plain(order_id: str) -> str:
            return order_id

        assert await plain("a") == await plain("a") == "a"  # a plain function may be decorated too


def test_the_blocking_twin_refuses_a_coroutine_function(valkey: Backend):
    with holdfast.sync.Holdfast(valkey.url) as hf:

        @hf.idempotent("{key}")
        async def charge(key: str) -> str:
            return key

        with pytest.raises(ConfigurationError, match="pass a plain function here"):
            charge("a")
    assert valkey.keys() == {}  # nobody is kept waiting by it


async def test_it_may_be_decorated_before_the_client_is_open(valkey: Backend):
    hf = Holdfast(valkey.url)

    @hf.idempotent("{key}")
    async def charge(key: str) -> str:
        return key

    with pytest.raises(ConfigurationError, match="open it first"):
        await charge("a")
    async with hf:
        assert await charge("a") == "a"
