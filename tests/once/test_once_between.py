"""What somebody else does between a reply that is lost and its repeat, or before an answer is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hiredis import ReplyError

import holdfast.sync
from holdfast import Holdfast, LeaseLost
from holdfast.engine.flow import Flow, ReplyLost, Send
from support.backends import Backend
from support.conditions import until

WINDOW = 600.0


@pytest.fixture
def other(valkey: Backend) -> Iterator[Any]:
    """Somebody else; blocking, so that it acts while the subject stands still."""
    with holdfast.sync.Holdfast(valkey.url) as hf:
        yield hf


class Between:
    """The first request is executed; then somebody else acts; then the reply is lost, or its caller interrupted."""

    def __init__(self, act: Callable[[], Any], error: type[BaseException] = ReplyLost) -> None:
        self.act: Callable[[], Any] | None = act
        self.error = error
        self.did: Any = None

    def install(self, client: Holdfast) -> None:
        driver = client._open
        real = driver.run
        driver.run = lambda flow: real(self.around(flow))  # type: ignore[union-attr, method-assign]

    def around(self, flow: Flow[Any]) -> Flow[Any]:
        send: Any = None
        throw: BaseException | None = None
        while True:
            try:
                effect = flow.throw(throw) if throw is not None else flow.send(send)
            except StopIteration as stop:
                return stop.value
            send, throw = None, None
            try:
                send = yield effect
                if isinstance(effect, Send) and not isinstance(send, ReplyError) and self.act is not None:
                    act, self.act = self.act, None
                    self.did = act()
                    raise self.error("between")
            except BaseException as error:
                throw = error


async def subject(valkey: Backend, stack: list[Holdfast], between: Between) -> Holdfast:
    hf = await Holdfast(valkey.url).open()
    stack.append(hf)
    between.install(hf)
    return hf


@pytest.fixture
async def stack() -> AsyncIterator[list[Holdfast]]:
    made: list[Holdfast] = []
    yield made
    for one in made:
        await one.close()


# -- ids and claims -------------------------------------------------------------------------------------------------


async def test_one_of_two_is_told_yes_although_the_first_was_forgotten_meanwhile(
    valkey: Backend, other: Any, stack: Any
):
    between = Between(lambda: (other.forget("s", "a"), other.once("s", "a")))
    hf = await subject(valkey, stack, between)
    assert await hf.once("s", "a") is False
    assert between.did == (1, True)


async def test_what_is_taken_back_is_only_ones_own(valkey: Backend, other: Any, stack: Any):
    between = Between(lambda: (other.forget("s", "a"), other.once("s", "a")), asyncio.CancelledError)
    hf = await subject(valkey, stack, between)
    with pytest.raises(asyncio.CancelledError):
        await hf.filter_new("s", ["a", "b"])
    while working := set(hf._open._background):
        await asyncio.wait(working)
    assert between.did == (1, True)
    assert other.filter_new("s", ["a", "b"]) == ["b"]


async def test_a_claim_that_another_has_done_meanwhile_is_done(valkey: Backend, other: Any, stack: Any):
    def act() -> None:
        other.forget("s", "a")
        with other.claim("s", "a") as claim:
            assert claim

    hf = await subject(valkey, stack, Between(act))
    async with hf.claim("s", "a") as claim:
        assert claim.state == "done"


async def test_a_repeat_of_giving_back_does_not_free_the_next_one(valkey: Backend, other: Any, stack: Any):
    claims: list[Any] = []
    between = Between(lambda: claims.append(other.claim("s", "a").begin()))
    hf = await subject(valkey, stack, between)
    act, between.act = between.act, None
    claim = await hf.claim("s", "a").begin()
    between.act = act
    await claim.release()
    assert claims[0].state == "mine"
    assert (await hf.claim("s", "a").begin()).state == "busy"
    claims[0].confirm()


async def test_a_confirmation_that_comes_twice_changes_nothing_more(valkey: Backend, other: Any, stack: Any):
    """It was done, forgotten and claimed anew: the repeat does not end that one, and its caller is told of the loss."""
    claims: list[Any] = []

    def act() -> None:
        assert other.forget("s", "a") == 1
        claims.append(other.claim("s", "a").begin())

    between = Between(act)
    hf = await subject(valkey, stack, between)
    act_then, between.act = between.act, None
    claim = await hf.claim("s", "a").begin()
    between.act = act_then
    with pytest.raises(LeaseLost):
        await claim.confirm()
    assert (await hf.claim("s", "a").begin()).state == "busy"
    claims[0].confirm()


# -- gates ----------------------------------------------------------------------------------------------------------


def reasons(gate: Any, key: str, *states: str) -> list[str]:
    return [gate.check(key, state).reason for state in states]


@pytest.mark.parametrize("trailing", [True, False])
async def test_a_state_whose_reply_was_lost_is_told_although_it_is_another_by_now(
    valkey: Backend, other: Any, stack: Any, trailing: bool
):
    gate = other.gate("g", WINDOW, trailing=trailing)
    gate.check("k", "A")
    between = Between(lambda: gate.check("k", "A"))
    hf = await subject(valkey, stack, between)
    # Given B, which is told; its reply is lost, and before it is asked for again the state is A, which is told
    decision = await hf.gate("g", WINDOW, trailing=trailing).check("k", "B")
    assert between.did.reason == "changed"
    # expect who asked to be answered as before: else nobody is ever told of B
    assert (decision.notify, decision.reason) == (True, "changed")
    # and the newer state to stay
    assert gate.check("k", "A").reason == "unchanged"
    assert gate.check("k", "B").reason == "repeated"


async def test_who_was_told_late_is_put_right(valkey: Backend, other: Any, stack: Any):
    gate = other.gate("g", 0.3)
    gate.check("k", "A")
    hf = await subject(valkey, stack, Between(lambda: gate.check("k", "A")))
    own = hf.gate("g", 0.3)
    assert (await own.check("k", "B")).notify  # told after A, which it is
    (notice,) = await until(own.due, what="a notice")
    assert notice.state == "A"
    assert await own.told(notice)
    assert await own.due() == []


@pytest.mark.parametrize("trailing", [True, False])
async def test_a_state_that_nobody_was_told_of_is_told_although_it_was_another_meanwhile(
    valkey: Backend, other: Any, stack: Any, trailing: bool
):
    gate = other.gate("g", WINDOW, trailing=trailing)
    assert reasons(gate, "k", "A", "C", "A") == ["first", "changed", "changed"]
    # Given B, whose caller is interrupted; before that is taken back the state is A again, which was told
    between = Between(lambda: gate.check("k", "A"), asyncio.CancelledError)
    hf = await subject(valkey, stack, between)
    with pytest.raises(asyncio.CancelledError):
        await hf.gate("g", WINDOW, trailing=trailing).check("k", "B")
    while working := set(hf._open._background):
        await asyncio.wait(working)
    assert between.did.reason == "repeated"
    # expect B to be told when it comes back
    assert gate.check("k", "B").reason == "changed"


async def test_a_notice_that_is_told_twice_does_not_hide_what_came_between(valkey: Backend, other: Any, stack: Any):
    gate = other.gate("g", 0.3)
    between = Between(lambda: gate.check("k", "C").reason)
    hf = await subject(valkey, stack, between)
    act, between.act = between.act, None
    while reasons(gate, "k", "A", "B", "A", "B") != ["first", "changed", "changed", "repeated"]:
        gate.forget("k")
    own = hf.gate("g", 0.3)
    (notice,) = await until(own.due, what="a notice")
    between.act = act
    # told is executed, C is told, told is repeated
    await own.told(notice)
    assert between.did == "changed"
    assert gate.check("k", "C").reason == "unchanged"
    assert gate.check("k", "B").reason == "repeated"
