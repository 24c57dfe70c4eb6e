"""Calls that are made once: results, failures, concurrent callers. On every kind of server, asyncio and threads."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from once_desk import SHORT, Desks, Held, Till

from holdfast import (
    ConfigurationError,
    EarlierFailure,
    InProgress,
    InvalidPayload,
    KeyMismatch,
    LeaseLost,
    NotAcquired,
    TooLarge,
    UnreadablePayload,
)
from support.conditions import until


async def test_everybody_gets_the_result_of_the_one_call(desks: Desks):
    one, two = await desks.two()
    till = Till()
    first, second = (desk.calls(till.charge, space="charge") for desk in (one, two))
    assert await first("a", 5) == {"receipt": 1}
    assert await first("a", 5) == await second("a", amount=5) == await second(key="a", amount=5) == {"receipt": 1}
    assert await second("b", 5) == {"receipt": 2}
    assert till.asked == [("a", 5), ("b", 5)]


async def test_a_result_comes_back_as_it_was(desks: Desks):
    one, two = await desks.two()
    results = [None, True, 0, -(2**70), 1.5, "text \u00e9 \x00", b"\x00\xff", [1, ["a"]], {"k": {"n": [b"x"]}}, "", {}]
    till = Till(*results)
    for key, result in enumerate(results):
        assert await one.calls(till.charge, space="c")(key) == result
        again = await two.calls(till.charge, space="c")(key)
        assert (again, type(again)) == (result, type(result))
    assert len(till.asked) == len(results)


async def test_the_same_key_with_other_arguments_is_an_error(desks: Desks):
    desk = await desks.desk()
    till = Till()
    charge = desk.calls(till.charge, space="charge")
    await charge("a", 5)
    with pytest.raises(KeyMismatch, match="use another key") as caught:
        await charge("a", 6)
    assert isinstance(caught.value, ConfigurationError)
    assert len(till.asked) == 1
    # defaults are arguments too, and numbers are compared as JSON has them
    await charge("b")
    assert await charge("b", amount=1) == await charge("b", 1.0) == {"receipt": 2}


async def test_a_mismatch_is_told_while_the_first_is_at_it(desks: Desks):
    one, two = await desks.two()
    held = Held()

    def charge(key: str, amount: int) -> Any:
        return held()

    working = one.calls(charge, space="charge")("a", 1)
    await until(lambda: held.begun)
    began = time.monotonic()
    with pytest.raises(KeyMismatch):
        await two.calls(charge, space="charge")("a", 2)
    assert time.monotonic() - began < 5
    held.go.set()
    assert await working == "done"


async def test_payload_says_what_of_the_arguments_counts(desks: Desks):
    desk = await desks.desk()
    till = Till()

    def charge(key: str, amount: int, when: object = None) -> Any:
        return till.charge(key, amount)

    charged = desk.calls(charge, space="charge", payload=lambda key, amount, when=None: [amount])
    assert await charged("a", 1, object()) == await charged("a", 1, when=object()) == {"receipt": 1}
    with pytest.raises(KeyMismatch):
        await charged("a", 2)
    # without it they must be JSON values
    with pytest.raises(InvalidPayload, match="pass payload="):
        await desk.calls(charge, space="other")("a", 1, object())
    assert len(till.asked) == 1


async def test_concurrent_callers_get_the_result_of_one_call(desks: Desks):
    crew = [await desks.desk() for _ in range(3)]
    held = Held({"receipt": 1})

    def charge(key: str) -> Any:
        return held()

    calls = [desk.calls(charge, space="charge")("a") for desk in crew]
    await until(lambda: held.begun)
    await until(lambda: sum(bool(desk.hf._core.feeds) for desk in crew) == 2, what="two that wait")
    held.go.set()
    assert await asyncio.gather(*calls) == [{"receipt": 1}] * 3
    assert held.begun == 1


async def test_who_does_not_want_to_wait_is_told_that_it_is_under_way(desks: Desks):
    one, two = await desks.two()
    held = Held()

    def charge(key: str) -> Any:
        return held()

    working = one.calls(charge, space="charge")("a")
    await until(lambda: held.begun)
    for wait in (0, 0.1):
        began = time.monotonic()
        with pytest.raises(InProgress, match="ask again later") as caught:
            await two.calls(charge, space="charge", wait=wait)("a")
        assert isinstance(caught.value, NotAcquired)
        assert time.monotonic() - began >= wait
    held.go.set()
    assert await working == "done"
    assert await two.calls(charge, space="charge", wait=0)("a") == "done"


# -- failures -------------------------------------------------------------------------------------------------------


async def test_a_failure_is_not_stored(desks: Desks):
    one, two = await desks.two()
    till = Till(ZeroDivisionError("no"), {"receipt": 7})
    with pytest.raises(ZeroDivisionError):
        await one.calls(till.charge, space="charge")("a")
    assert desks.lives() == {}
    assert await two.calls(till.charge, space="charge")("a") == {"receipt": 7}


async def test_who_waits_for_one_that_fails_tries_itself(desks: Desks):
    one, two = await desks.two()
    first, second = Held(error=ZeroDivisionError()), Held("second")
    second.go.set()

    def fails(key: str) -> Any:
        return first()

    def charge(key: str) -> Any:
        return second()

    working = one.calls(fails, space="charge")("a")
    await until(lambda: first.begun)
    waiting = two.calls(charge, space="charge")("a")
    await until(lambda: two.hf._core.feeds)
    first.go.set()
    with pytest.raises(ZeroDivisionError):
        await working
    assert await waiting == "second"


@pytest.mark.parametrize(
    ("store", "stored"), [(True, True), ((ValueError,), True), ((KeyError,), False), ((), False), (False, False)]
)
async def test_a_failure_is_stored_where_that_was_asked_for(quick: Desks, store: Any, stored: bool):
    one, two = await quick.two()
    till = Till(ValueError("no such card \ud800"), "went through")
    with pytest.raises(ValueError, match="no such card"):
        await one.calls(till.charge, space="charge", store_errors=store)("a")
    again = two.calls(till.charge, space="charge", store_errors=store)
    if not stored:
        assert await again("a") == "went through"
        return
    with pytest.raises(EarlierFailure, match="failed before with ValueError: no such card") as caught:
        await again("a")
    assert caught.value.error == "ValueError"
    assert len(till.asked) == 1
    with pytest.raises(KeyMismatch):
        await again("a", 2)


async def test_an_interruption_and_an_error_of_ours_are_never_stored(desks: Desks):
    desk = await desks.desk()
    till = Till(desks.cancel(), LeaseLost("stop"), "went through")
    charge = desk.calls(till.charge, space="charge", store_errors=True)
    for expected in (desks.cancel, LeaseLost):
        with pytest.raises(expected):
            await charge("a")
    assert await charge("a") == "went through"


@pytest.mark.parametrize("result", [object(), {1, 2}, {"a": object()}], ids=["object", "set", "inside"])
async def test_what_cannot_be_stored_is_not_called_again(quick: Desks, result: Any):
    """It was called: the next caller must not call it again, and is told."""
    one, two = await quick.two()
    till = Till(result)
    with pytest.raises(InvalidPayload):
        await one.calls(till.charge, space="charge")("a")
    for desk in (one, two):
        with pytest.raises(UnreadablePayload, match="return a JSON value or bytes"):
            await desk.calls(till.charge, space="charge")("a")
    assert len(till.asked) == 1


async def test_a_result_that_is_too_large_is_not_called_again(quick: Desks):
    desk = await quick.desk(max_message_bytes=1000)
    till = Till("x" * 2000)
    charge = desk.calls(till.charge, space="charge")
    with pytest.raises(TooLarge):
        await charge("a")
    with pytest.raises(UnreadablePayload):
        await charge("a")
    assert len(till.asked) == 1


# -- life -----------------------------------------------------------------------------------------------------------


async def test_a_result_is_kept_as_long_as_it_was_asked_to(desks: Desks):
    desk = await desks.desk()
    till = Till()
    charge = desk.calls(till.charge, space="charge", ttl=0.3)
    began = time.monotonic()
    assert await charge("a") == {"receipt": 1}

    async def again() -> bool:
        return await charge("a") == {"receipt": 2}

    await until(again)
    assert time.monotonic() - began >= 0.3
    assert await desk.calls(till.charge, space="other")("a") == {"receipt": 3}
    assert max(desks.lives().values()) > 86_000_000  # by default a day


async def test_one_whose_worker_died_is_called_again_after_its_lease(desks: Desks):
    one, two = await desks.two()
    held, till = Held(), Till()

    def charge(key: str) -> Any:
        return held()

    def instead(key: str) -> Any:
        return till.charge(key)

    working = one.calls(charge, space="charge", lease=SHORT)("a")
    await until(lambda: held.begun)
    for hold in list(one.hf._core.holds.values()):
        hold.abandoned = True  # as if the process were gone: nobody renews it
    assert await two.calls(instead, space="charge")("a") == {"receipt": 1}
    # and the one that was thought dead is told, and does not replace the result
    held.go.set()
    with pytest.raises(LeaseLost):
        await working
    assert await two.calls(instead, space="charge")("a") == {"receipt": 1}


async def test_loss_during_the_call_is_told(quick: Desks):
    one, two = await quick.two()
    begun: list[int] = []

    def charge(key: str) -> Any:
        begun.append(1)
        hold = next(iter(one.hf._core.holds.values()))
        return until(lambda: False) if not one.blocking else _until_lost(hold)

    working = one.calls(charge, space="charge", lease=SHORT)("a")
    await until(lambda: begun)
    quick.backend.flush()
    with pytest.raises(LeaseLost):
        await working
    till = Till()
    assert await two.calls(till.charge, space="charge", payload=lambda *_: {"key": "a"})("a") == {"receipt": 1}


def _until_lost(hold: Any) -> str:
    ends = time.monotonic() + 10
    while not hold.lost_reason and time.monotonic() < ends:
        time.sleep(0.005)
    return "too late"
