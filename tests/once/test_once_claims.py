"""Claims: what one caller at a time may work on, until it is done. On every kind of server, asyncio and threads."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from once_desk import SHORT, Desk, Desks, Held

from holdfast import LeaseLost
from holdfast.events import Claimed, Lost, Renewed
from holdfast.once import flows
from support.conditions import until
from support.mutants import Edited


async def test_it_is_done_when_its_body_ends(desks: Desks):
    one, two = await desks.two()
    assert await one.body(None, "orders", "a") == "mine"
    for desk in (one, two):
        claim = await desk.begin("orders", "a")
        assert (claim.state, bool(claim), claim.fence, claim.lost) == ("done", False, 0, False)
        assert await desk.body(None, "orders", "a") == "done"
    assert await two.body(None, "orders", "b") == "mine"


async def test_it_is_busy_while_somebody_works_on_it(desks: Desks):
    one, two = await desks.two()
    claim = await one.begin("orders", "a", 60)
    assert (claim.state, bool(claim), claim.lost) == ("mine", True, False)
    assert claim.fence > 0
    assert await two.state("orders", "a") == "busy"
    assert await one.state("orders", "a") == "busy"  # also for the same caller
    await one.on(claim, "confirm")
    await one.on(claim, "confirm")
    assert await two.state("orders", "a") == "done"


async def test_it_is_given_back_when_its_body_raises(desks: Desks):
    one, two = await desks.two()

    def fail(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await one.body(fail, "orders", "a")
    assert desks.lives() == {}
    assert await two.body(None, "orders", "a") == "mine"


async def test_it_is_given_back_when_its_caller_is_interrupted(desks: Desks):
    one, two = await desks.two()

    def interrupted(_: Any) -> None:
        raise desks.cancel

    with pytest.raises(desks.cancel):
        await one.body(interrupted, "orders", "a")
    assert await two.body(None, "orders", "a") == "mine"


async def test_a_cancelled_task_gives_it_back(tasks: Desks):
    one, two = await tasks.two()
    begun = asyncio.Event()

    async def work() -> None:
        async with one.hf.claim("orders", "a"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await two.body(None, "orders", "a") == "mine"


async def test_given_back_by_hand_it_is_free_at_once(desks: Desks):
    one, two = await desks.two()
    claim = await one.begin("orders", "a")
    await one.on(claim, "release")
    await one.on(claim, "release")
    taken = await two.begin("orders", "a")
    assert taken.state == "mine"
    await one.on(claim, "release")  # it has nothing to give back any more
    assert await one.state("orders", "a") == "busy"
    assert taken.fence > claim.fence
    await two.on(taken, "release")


async def test_ids_are_shared_with_once(desks: Desks):
    one, two = await desks.two()
    assert await one.once("orders", "a")
    assert await two.state("orders", "a") == "done"
    claim = await one.begin("orders", "b")
    assert not await two.once("orders", "b")
    await one.on(claim, "release")
    assert await two.once("orders", "b")
    assert await one.body(None, "orders", ("c", 1)) == "mine"
    assert await two.filter_new("orders", [("c", 1), ("c", "1")]) == [("c", "1")]


async def test_it_stays_done_as_long_as_it_was_asked_to(desks: Desks):
    one, two = await desks.two()
    began = time.monotonic()
    assert await one.body(None, "orders", "a", 0.3) == "mine"

    async def mine() -> bool:
        return await two.body(None, "orders", "a", 60) == "mine"

    await until(mine)
    assert time.monotonic() - began >= 0.3
    assert max(desks.lives().values()) > 50_000


async def test_it_lasts_as_long_as_its_body(desks: Desks):
    # Given a body that takes longer than its lease
    renewed: list[Any] = []
    one, two = await desks.two(observers=[lambda event: isinstance(event, Renewed) and renewed.append(event)])
    held = Held()
    working = one.body(lambda _: held(), "orders", "a", lease=0.6)
    await until(lambda: held.begun)
    # when it was renewed, expect others to hear that somebody works on it
    await until(lambda: len(renewed) >= 4, what="renewals for longer than it")
    assert await two.state("orders", "a") == "busy"
    held.go.set()
    assert await working == "done"
    assert await two.state("orders", "a") == "done"


async def test_one_that_died_is_followed_after_its_lease(desks: Desks):
    one, two = await desks.two()
    began = time.monotonic()
    dead = await one.dead("orders", "a")
    claim = await two.begin("orders", "a", wait=None)
    assert claim.state == "mine"
    assert SHORT <= time.monotonic() - began < SHORT + 1
    assert claim.fence > dead.fence
    # and is refused when it comes back
    with pytest.raises(LeaseLost):
        await one.on(dead, "confirm")
    assert await one.state("orders", "a") == "busy"
    await two.on(claim, "confirm")


async def test_a_client_that_is_closed_gives_back_what_it_has(desks: Desks):
    one, two = await desks.two()
    await one.begin("orders", "a", lease=60)
    await desks.close_client(one.hf)
    assert await two.body(None, "orders", "a") == "mine"


# -- loss -----------------------------------------------------------------------------------------------------------


async def test_loss_ends_the_body(desks: Desks):
    # Given a body under way
    events: list[Any] = []
    one, two = await desks.two(observers=[events.append])
    seen: list[Any] = []

    def work(claim: Any) -> Any:
        seen.append(claim)
        return one.rest(claim)

    working = one.body(work, "orders", "a", lease=SHORT)
    await until(lambda: seen)
    # when the server forgets it
    assert await two.forget("orders", "a") == 1
    # expect the body to be ended, and that to be told
    with pytest.raises(LeaseLost, match="stop working on this id") as caught:
        await working
    assert caught.value.reason == "taken away"
    assert seen[0].lost
    with pytest.raises(LeaseLost):
        seen[0].check()
    await until(lambda: [event.what for event in events if isinstance(event, Lost)] == ["claim"], what="the event")
    # and nothing to be there that the next one would trip over
    assert await two.body(None, "orders", "a") == "mine"


async def test_one_that_is_lost_cannot_be_confirmed_by_hand(desks: Desks):
    """PITFALL 44: it must be told, and must not count as done."""
    one, two = await desks.two()
    claim = await one.begin("orders", "a", lease=SHORT)
    await two.forget("orders", "a")
    await until(lambda: claim.lost)
    with pytest.raises(LeaseLost):
        await one.on(claim, "confirm")
    assert await two.state("orders", "a") == "mine"


async def test_one_that_was_taken_away_is_found_by_its_confirmation(desks: Desks):
    # Given a claim that is not renewed soon, and was given to another meanwhile
    one, two = await desks.two()
    claim = await one.begin("orders", "a", lease=60)
    await two.forget("orders", "a")
    other = await two.begin("orders", "a", lease=60)
    # when it is confirmed, expect that to be refused, and the other to go on
    with pytest.raises(LeaseLost) as caught:
        await one.on(claim, "confirm")
    assert caught.value.reason == "taken away"
    assert claim.lost
    assert await one.state("orders", "a") == "busy"
    await two.on(other, "confirm")
    assert await one.state("orders", "a") == "done"


async def test_an_error_of_the_body_is_not_replaced_by_the_loss(quick: Desks):
    one, two = await quick.two()
    held = Held(error=ZeroDivisionError())
    claims: list[Any] = []

    def work(claim: Any) -> Any:
        claims.append(claim)
        if one.blocking:
            one.rest(claim)
            return held()
        return stubborn(claim, held)

    working = one.body(work, "orders", "a", lease=SHORT)
    held.go.set()
    await until(lambda: claims)
    await two.forget("orders", "a")
    with pytest.raises(ZeroDivisionError):
        await working


async def stubborn(claim: Any, held: Held) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await held()


# -- waiting --------------------------------------------------------------------------------------------------------


async def waiting(desk: Desk, *args: Any, **options: Any) -> asyncio.Future[Any]:
    """A body that waits for its turn, and is known to listen."""
    feeds = desk.hf._core.feeds
    started = desk.body(None, *args, **options)
    await until(lambda: feeds, what="a waiter")
    await until(lambda: any(map(callable, desk.hf._core.mailbox._slots.values())), what="one that sleeps")
    return started


@pytest.mark.parametrize("ends", ["confirm", "release"])
async def test_who_waits_is_woken_when_the_other_ends(desks: Desks, ends: str):
    # Given two that wait for one at work
    one, two = await desks.two()
    third = await desks.desk()
    claim = await one.begin("orders", "a", lease=60)
    pending = [await waiting(desk, "orders", "a", wait=wait) for desk, wait in ((two, None), (third, 30.0))]
    # when it ends, expect them to be told at once
    began = time.monotonic()
    await one.on(claim, ends)
    states = sorted(await asyncio.gather(*pending))
    assert time.monotonic() - began < 1.0
    # and, where it was given back, exactly one to have it
    assert states == (["done", "done"] if ends == "confirm" else ["done", "mine"])
    assert not two.hf._core.feeds
    assert not third.hf._core.feeds


async def test_who_waits_too_long_gives_up(desks: Desks):
    one, two = await desks.two()
    claim = await one.begin("orders", "a")
    began = time.monotonic()
    assert await two.body(None, "orders", "a", wait=0.15) == "busy"
    assert 0.15 <= time.monotonic() - began < 2
    assert not two.hf._core.feeds
    await one.on(claim, "release")


async def test_who_waits_asks_now_and_then_as_a_message_may_be_lost(quick: Desks):
    # Given one that ends without a word
    one, two = await quick.two()
    one.hf._core.scripts = Edited([("once/confirm", "call('SPUBLISH', ARGV[4], '1')", "")])
    claim = await one.begin("orders", "a", lease=60)
    pending = await waiting(two, "orders", "a", wait=None)
    began = time.monotonic()
    await one.on(claim, "confirm")
    # expect who waits to find out
    assert await pending == "done"
    assert time.monotonic() - began <= flows.CHECK + 0.5


async def test_who_waits_and_cannot_listen_finds_out_too(quick: Desks, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flows, "CHECK", 0.2)
    server = quick.backend.owner
    one, two = await quick.two()
    claim = await one.begin("orders", "a", lease=60)
    server.call("ACL", "SETUSER", "default", "-ssubscribe")
    try:
        pending = two.body(None, "orders", "a", wait=None)
        await until(lambda: any(map(callable, two.hf._core.mailbox._slots.values())), what="one that sleeps")
        await one.on(claim, "confirm")
        assert await pending == "done"
    finally:
        server.call("ACL", "SETUSER", "default", "+ssubscribe")


async def test_one_that_ends_between_the_look_and_the_subscription_is_not_missed(quick: Desks):
    """PITFALL 11."""
    one, two = await quick.two()
    claim = await one.begin("orders", "a", lease=60)
    core = two.hf._core
    real, joined = core.join_feed, []
    done = b"d" + claim._hold.token.encode() + bytes(16)

    def join(*args: Any) -> Any:
        # It ends now: after the look that said busy, and before anybody listens.
        joined.append(quick.backend.owner.call("SET", claim._place.key, done, "PX", 60_000))
        return real(*args)

    core.join_feed = join
    began = time.monotonic()
    assert await two.body(None, "orders", "a", wait=None) == "done"
    assert joined == [b"OK"]
    assert time.monotonic() - began < 1.0
    await one.on(claim, "confirm")


async def test_a_waiter_that_is_cancelled_leaves_nothing(tasks: Desks):
    one, two = await tasks.two()
    claim = await one.begin("orders", "a", lease=60)

    async def work() -> None:
        async with two.hf.claim("orders", "a", wait=None):
            raise AssertionError("it is not free")

    task = asyncio.create_task(work())
    await until(lambda: any(map(callable, two.hf._core.mailbox._slots.values())))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not two.hf._core.feeds
    await tasks.settled(two)
    await one.on(claim, "confirm")
    assert await two.state("orders", "a") == "done"


# -- what is seen of it ---------------------------------------------------------------------------------------------


async def test_outcomes_are_counted(quick: Desks):
    events: list[Any] = []
    desk = await quick.desk(observers=[events.append])
    claim = await desk.begin("orders", "a")
    await desk.begin("orders", "a")
    await desk.on(claim, "confirm")
    await desk.begin("orders", "a")
    assert [event for event in events if isinstance(event, Claimed)] == [
        Claimed("orders", "acquired"), Claimed("orders", "rejected"), Claimed("orders", "duplicate"),
    ]  # fmt: skip


async def test_it_shows_what_it_is(quick: Desks):
    desk = await quick.desk()
    claim = desk.hf.claim("orders", ("a", 1))
    assert (repr(claim), bool(claim), claim.state) == ("<Claim orders:('a', 1) new>", False, "new")
    claim.check()
    await desk.on(claim, "confirm")  # there is nothing to confirm
    await desk.on(claim, "release")
    assert quick.lives() == {}
    assert await desk.on(claim, "begin") is claim
    assert repr(claim) == "<Claim orders:('a', 1) mine>"
    await desk.on(claim, "release")
