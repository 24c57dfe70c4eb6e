"""Workers that end or die: what they had is finished, handed over, or ended with a reason."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from run_crew import Hand, Hands, Held, never, until_told

from holdfast.events import RunReturned
from holdfast.runs.worker import RunWorker
from holdfast.testing import FaultProxy
from support.conditions import until


def counting(log: list[Any], name: str, go: asyncio.Event | None = None) -> Any:
    """A handler that saves each number before it goes on, and goes on from what was saved."""

    async def count(run: Any) -> list[Any]:
        log.append((name, run.attempt, run.saved))
        for number in range(run.saved or 0, 3):
            await run.emit(number)
            await run.checkpoint(number + 1)
            if go is not None:
                await go.wait()
        return [name, run.attempt]

    return count


# -- drain ----------------------------------------------------------------------------------------------------------


async def test_a_worker_that_is_stopped_finishes_what_it_has_and_takes_nothing_more(hands: Hands):
    held = Held(result="done")
    hand = await hands.worker(held, concurrency=1)
    await hand.agent.start("r")
    await until(lambda: held.log, what="the handler")
    assert not held.runs[0].draining
    hand.hf.stop_work()
    await until(lambda: held.runs[0].draining, what="the word")
    await hand.agent.start("late")
    await never(hand.working.done, 0.2, "it did not wait for its handler")
    held.go.set()
    await asyncio.wait_for(hand.working, 5)
    assert ((await hand.agent.get("r")).state, (await hand.agent.get("r")).result) == ("completed", "done")
    assert ((await hand.agent.get("late")).state, held.log) == ("queued", ["r"])


async def test_what_is_resumable_is_handed_over_with_its_checkpoint(hands: Hands):
    # Given a run that may have one attempt, in a worker that has no time left
    log: list[Any] = []
    first = await hands.worker(
        counting(log, "one", asyncio.Event()), runs={"max_attempts": 1}, settings={"drain": 0.1}, resumable=True
    )
    await first.agent.start("r")
    await until(lambda: saved(first, 1), what="a checkpoint")
    second = await hands.worker(counting(log, "two"), runs={"max_attempts": 1}, resumable=True)
    began = time.monotonic()
    await first.stop()
    # expect another to go on from there, at once, and that it does not count
    run = await second.ended("r")
    assert (run.state, run.result, run.attempt) == ("completed", ["two", 2], 2)
    assert time.monotonic() - began < 3
    assert log == [("one", 1, None), ("two", 2, 1)]
    events = [event async for event in second.agent.events("r", timeout=5)]
    assert [(event.kind, event.data) for event in events[:-1]] == [
        ("data", 0), ("resumed", {"attempt": 2, "after": events[0].id}), ("data", 1), ("data", 2),
    ]  # fmt: skip
    (returned,) = first.told(RunReturned)
    assert (returned.run, returned.reason) == ("r", "worker shut down")


async def saved(hand: Hand, events: int) -> bool:
    return (await hand.agent.get("r")).events >= events


@pytest.mark.parametrize("how", ["stop_work", "cancel", "close"])
async def test_what_is_not_resumable_fails_with_that_reason(hands: Hands, how: str):
    held = Held()
    hand = await hands.worker(held, settings={"drain": 0.1})
    other = await hands.client()
    await other.agent.start("r")
    await until(lambda: held.log, what="the handler")
    if how == "stop_work":
        await hand.stop()
    elif how == "cancel":
        hand.working.cancel()
    else:
        hands.members.remove(hand)
        await hand.close()
    run = await other.ended("r")
    assert (run.state, run.reason, held.cancelled) == ("failed", "worker shut down", ["r"])


async def test_many_shutdowns_do_not_use_up_the_attempts(hands: Hands):
    client = await hands.client()
    await client.agent.start("r")
    for attempt in range(1, 5):
        held = Held()
        hand = await hands.worker(held, runs={"max_attempts": 2}, settings={"drain": 0.0}, resumable=True)
        await until(lambda held=held: held.log, what="the handler")
        assert held.runs[0].attempt == attempt
        await hand.stop()
        assert (await client.agent.get("r")).state == "queued"


@pytest.mark.parametrize("resumable", [True, False])
async def test_a_plain_handler_that_is_in_the_way_is_left_behind(hands: Hands, resumable: bool):
    end = threading.Event()
    lost: list[bool] = []

    def work(run: Any) -> None:
        until_told(run)
        lost.append(run.lost)
        end.wait(5)

    hand = await hands.worker(work, settings={"drain": 0.1}, resumable=resumable)
    await hand.agent.start("r")
    await hand.becomes("r", "running")
    await hand.stop()
    run = await hand.agent.get("r")
    assert (run.state, run.reason) == (("queued", "") if resumable else ("failed", "worker shut down"))
    await until(lambda: lost == [True], what="its handler being told that it has no run any more")
    end.set()


async def test_a_stop_during_the_drain_ends_stopped(hands: Hands):
    held = Held()
    hand = await hands.worker(held, settings={"drain": 5.0}, resumable=True)
    await hand.agent.start("r")
    await until(lambda: held.log, what="the handler")
    hand.hf.stop_work()
    await (await hands.client()).agent.stop("r", "enough")
    await asyncio.wait_for(hand.working, 3)
    assert (await hand.agent.get("r")).state == "stopped"


async def test_what_finished_as_the_time_ran_out_has_completed(hands: Hands):
    async def work(run: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "just in time"
        return ""

    hand = await hands.worker(work, settings={"drain": 0.1})
    await hand.agent.start("r")
    await hand.becomes("r", "running")
    await hand.stop()
    run = await hand.agent.get("r")
    assert (run.state, run.result) == ("completed", "just in time")


async def test_a_wake_up_in_the_moment_of_the_end_does_not_keep_the_worker(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
):
    # Given a worker that is woken in the same moment in which it is ended: a wait may then forget the cancellation
    loop = RunWorker._loop

    async def woken_at_the_end(self: RunWorker) -> None:
        try:
            await loop(self)
        finally:
            self._look_now()

    monkeypatch.setattr(RunWorker, "_loop", woken_at_the_end)
    hand = await hands.worker(Held())
    hand.working.cancel()
    done, _ = await asyncio.wait([hand.working], timeout=3)
    if not done:
        hand.working.cancel()
    assert done, "the work did not end"


# -- death ----------------------------------------------------------------------------------------------------------


async def silent_worker(hands: Hands, handler: Any, proxy: FaultProxy, **options: Any) -> Hand:
    return await hands.worker(
        handler, url=proxy.url, runs={"lease": 0.5, "max_attempts": 2},
        settings={"drain": 0.0, "call_timeout": 0.5, "retry_for": 0.5}, **options,
    )  # fmt: skip


@pytest.fixture
def proxy(hands: Hands):
    behind = hands.backend.owner
    with FaultProxy(behind.host, behind.port) as running:
        yield running
        running.heal()


async def test_a_resumable_run_of_a_dead_worker_goes_on_elsewhere(hands: Hands, proxy: FaultProxy):
    log: list[Any] = []
    first = await silent_worker(hands, counting(log, "one", asyncio.Event()), proxy, resumable=True)
    client = await hands.client()
    await client.agent.start("r")
    await until(lambda: saved(client, 1), what="a checkpoint")
    second = await hands.worker(counting(log, "two"), runs={"lease": 0.5}, resumable=True)
    proxy.black_hole()
    run = await client.ended("r", within=5)
    assert (run.state, run.result, log) == ("completed", ["two", 2], [("one", 1, None), ("two", 2, 1)])
    proxy.heal()
    del first, second


async def test_a_run_of_a_dead_worker_that_is_not_resumable_has_failed(hands: Hands, proxy: FaultProxy):
    held, other = Held(), Held()
    await silent_worker(hands, held, proxy)
    client = await hands.client()
    await client.agent.start("r")
    await until(lambda: held.log, what="the handler")
    await hands.worker(other, runs={"lease": 0.5})
    proxy.black_hole()
    run = await client.ended("r", within=5)
    assert (run.state, run.reason, run.attempt, other.log) == ("failed", "worker lost", 1, [])
    # and its handler was cancelled where it was, when its lease was over
    await until(lambda: held.cancelled, within=3, what="the cancellation")
    proxy.heal()


async def test_hand_outs_are_bounded(hands: Hands):
    # Given a handler that takes its worker's lease with it each time
    log: list[int] = []

    async def deadly(run: Any) -> None:
        log.append(run.attempt)
        run._given.hold.abandoned = True
        await asyncio.Event().wait()

    hand = await hands.worker(deadly, runs={"lease": 0.2, "max_attempts": 3}, resumable=True)
    await hand.agent.start("r")
    run = await hand.ended("r")
    assert (run.state, run.reason, run.attempt, log) == ("failed", "worker lost", 3, [1, 2, 3])


async def test_a_run_that_was_claimed_by_hand_is_not_a_workers(hands: Hands):
    held = Held()
    await hands.worker(held)
    client = await hands.client()
    run = await client.agent.claim("r", lease=0.2)
    run._given.hold.abandoned = True
    await client.becomes("r", "queued")
    await never(lambda: held.log, 0.3, "a worker took what belongs to another job queue")
    assert (await client.agent.claim("r")).attempt == 2


async def test_the_loss_of_the_server_does_not_end_the_worker(hands: Hands, proxy: FaultProxy):
    held = Held()
    held.go.set()
    hand = await silent_worker(hands, held, proxy)
    proxy.cut()
    proxy.black_hole()
    client = await hands.client()
    await client.agent.start("r")
    await never(lambda: held.log, 0.3, "it cannot have it")
    proxy.heal()
    assert (await client.ended("r")).state == "completed"
    assert not hand.working.done()
